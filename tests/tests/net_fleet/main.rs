//! A fleet with a real etcd and real processes: successful and failing changes, and faults during them.

mod faults;
mod guide;
mod records;
mod rights;
mod rollout;
mod unreachable;
