//! What is left of an attachment by whatever may happen to it: processes killed, disks full, interfaces and namespaces that come,
//! go and change their names.

mod confirm;
mod held;
mod identity;
mod kill;
mod multiqueue;
mod qdiscs;
mod rights;
mod status;
mod together;
mod upgrade;
