//! Who has how many connections.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Connections at a time.
pub(super) const CONNECTIONS: usize = 16;
/// Those of one user: no user of the group can keep the others out.
pub(super) const OF_A_USER: usize = 4;

/// Connections of each user.
#[derive(Clone, Debug, Default)]
pub(super) struct ConnectionSlots(Arc<Mutex<BTreeMap<u32, usize>>>);

/// A connection's place, until it is dropped.
#[derive(Debug)]
pub(super) struct ConnectionSlot {
    slots: ConnectionSlots,
    user: u32,
}

impl ConnectionSlots {
    /// A place for one more connection of `user`.
    ///
    /// # Errors
    /// Why there is none.
    pub(super) fn take(&self, user: u32) -> Result<ConnectionSlot, String> {
        let mut of_users = self.lock();
        if of_users.values().sum::<usize>() >= CONNECTIONS {
            return Err(format!("all {CONNECTIONS} connections are in use; retry"));
        }
        let its = of_users.entry(user).or_default();
        if *its >= OF_A_USER {
            return Err(format!("user {user} has {OF_A_USER} connections already: end one, and ask again"));
        }
        *its += 1;
        Ok(ConnectionSlot { slots: self.clone(), user })
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<u32, usize>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        let mut of_users = self.slots.lock();
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
        let mut taken: Vec<ConnectionSlot> = (0..OF_A_USER).map(|_| slots.take(1).unwrap()).collect();
        assert!(slots.take(1).unwrap_err().contains("user 1 has 4 connections"));
        for user in 2..=4 {
            taken.extend((0..OF_A_USER).map(|_| slots.take(user).unwrap()));
        }
        assert_eq!(taken.len(), CONNECTIONS);
        assert!(slots.take(5).unwrap_err().contains("all 16 connections are in use"));
        drop(taken.remove(0));
        let fifth = slots.take(5).unwrap();
        assert!(slots.take(1).is_err(), "the fifth user has it");
        drop(fifth);
        let _first = slots.take(1).unwrap();
        drop(taken);
        assert_eq!(slots.lock().len(), 1, "users who are gone are forgotten");
    }
}
