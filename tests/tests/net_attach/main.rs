//! Remains of an attachment after any fault: processes killed, disks full, interfaces and namespaces deleted, recreated
//! and renamed.

mod confirm;
mod identity;
mod kill;
mod locks;
mod qdiscs;
mod rights;
mod status;
mod together;
mod upgrade;
