//! Asking the controller of this host, on a thread of its own.

use dcqcn_control_api::{AskError, Door, Verb};
use serde::de::DeserializeOwned;
use tokio::task::spawn_blocking;

/// Asks once.
///
/// # Errors
/// As [`Door::ask`].
pub(crate) async fn ask<T: DeserializeOwned + Send + 'static>(
    door: &Door,
    verb: Verb,
) -> Result<T, AskError> {
    let door = door.clone();
    let asked = spawn_blocking(move || door.ask(verb)).await;
    asked.unwrap_or_else(|error| Err(AskError::Answer(error.to_string())))
}
