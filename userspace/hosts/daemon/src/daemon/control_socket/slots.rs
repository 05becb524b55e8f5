//! Limits on connections.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use dcqcn_support::sync::lock;

pub(super) const MAX_CONNECTIONS: usize = 16;
/// Maximum number of connections of one user other than root, so that no user of the group can lock out the others.
pub(super) const MAX_USER_CONNECTIONS: usize = 4;
/// Connections that only root can use.
const ROOT_CONNECTIONS: usize = 4;

#[derive(Clone, Debug, Default)]
pub(super) struct ConnectionSlots(Arc<Mutex<BTreeMap<u32, usize>>>);

/// A connection's slot, released on drop.
#[derive(Debug)]
pub(super) struct ConnectionSlot {
    slots: ConnectionSlots,
    user: u32,
}

impl ConnectionSlots {
    /// Reserves a slot for a connection of `user`; the error is the limit that was reached.
    pub(super) fn acquire(&self, user: u32) -> Result<ConnectionSlot, String> {
        let mut of_users = lock(&self.0);
        let is_root = user == 0;
        let of_root = of_users.get(&0).copied().unwrap_or_default();
        let reserved = if is_root { 0 } else { ROOT_CONNECTIONS.saturating_sub(of_root) };
        let most = MAX_CONNECTIONS - reserved;
        if of_users.values().sum::<usize>() >= most {
            return Err(format!("all {most} connections are in use; retry"));
        }
        let its = of_users.entry(user).or_default();
        if !is_root && *its >= MAX_USER_CONNECTIONS {
            return Err(format!(
                "user {user} has {MAX_USER_CONNECTIONS} connections already; close one and retry"
            ));
        }
        *its += 1;
        Ok(ConnectionSlot { slots: self.clone(), user })
    }
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        let mut of_users = lock(&self.slots.0);
        if let Some(its) = of_users.get_mut(&self.user) {
            *its -= 1;
            if *its == 0 {
                of_users.remove(&self.user);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connection_slots_per_user_and_total() {
        let slots = ConnectionSlots::default();
        let mut taken: Vec<ConnectionSlot> =
            (0..MAX_USER_CONNECTIONS).map(|_| slots.acquire(1).unwrap()).collect();
        assert!(slots.acquire(1).unwrap_err().contains("user 1 has 4 connections"));
        for user in 2..=3 {
            taken.extend((0..MAX_USER_CONNECTIONS).map(|_| slots.acquire(user).unwrap()));
        }
        assert!(slots.acquire(5).unwrap_err().contains("all 12 connections are in use"));
        let roots: Vec<ConnectionSlot> = (0..ROOT_CONNECTIONS).map(|_| slots.acquire(0).unwrap()).collect();
        assert_eq!(taken.len() + roots.len(), MAX_CONNECTIONS);
        assert!(slots.acquire(0).unwrap_err().contains("all 16 connections are in use"));
        drop(roots);
        drop(taken.remove(0));
        let fifth = slots.acquire(5).unwrap();
        assert!(slots.acquire(1).is_err(), "the fifth user has the last one");
        // More than another user may have.
        assert_eq!(
            (0..=ROOT_CONNECTIONS).filter_map(|_| slots.acquire(0).ok()).count(),
            ROOT_CONNECTIONS + 1
        );
        drop(fifth);
        let _first = slots.acquire(1).unwrap();
        drop(taken);
        let roots: Vec<ConnectionSlot> = (0..ROOT_CONNECTIONS).map(|_| slots.acquire(0).unwrap()).collect();
        let others = (2..5).flat_map(|user| (0..MAX_USER_CONNECTIONS).map(move |_| user));
        let others: Vec<_> = others.filter_map(|user| slots.acquire(user).ok()).collect();
        assert_eq!(others.len(), 11, "root's connections do not count");
        drop((others, roots));
        assert_eq!(lock(&slots.0).len(), 1, "users without connections are removed");
    }
}
