//! A fleet with a real etcd and real processes: successful and failing changes, and faults in the meantime.

mod apart;
mod faults;
mod full;
mod guide;
mod records;
mod rights;
mod rollout;
