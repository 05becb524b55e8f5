//! A fleet with a real etcd and real processes: changes that go well, that go wrong and come back, and what breaks in the meantime.

mod apart;
mod faults;
mod full;
mod guide;
mod records;
mod rights;
mod rollout;
