//! Asynchronous requests to the daemon of this host.

use dcqcn_control_api::{ClientError, ControlClient, Verb};
use serde::de::DeserializeOwned;
use tokio::task::spawn_blocking;

pub(crate) async fn send<T: DeserializeOwned + Send + 'static>(
    client: &ControlClient,
    verb: Verb,
) -> Result<T, ClientError> {
    let client = client.clone();
    let result = spawn_blocking(move || client.request(verb)).await;
    result.unwrap_or_else(|error| Err(ClientError::Answer(error.to_string())))
}
