//! Client of this host's daemon.

use std::fs::{File, TryLockError};
use std::io;
use std::os::unix::fs::MetadataExt as _;

use dcqcn_control_api::{ClientError, Release, Status, lock_path};
use dcqcn_support::file::existing;
use tokio::task::spawn_blocking;

use super::order::Order;
use crate::prelude::*;

const QUERY_TIMEOUT: Duration = Duration::from_secs(10);
/// Time limit for changes, the same as the daemon's own.
const CHANGE_TIMEOUT: Duration = Duration::from_secs(310);

/// Sends one request to the daemon from a blocking thread.
pub(crate) async fn send<T: DeserializeOwned + Send + 'static>(
    client: &ControlClient,
    verb: Verb,
) -> Result<T, ClientError> {
    let client = client.clone();
    let result = spawn_blocking(move || client.request(verb)).await;
    result.unwrap_or_else(|error| Err(ClientError::Answer(error.to_string())))
}

pub(super) fn name(version: u64) -> String {
    format!("{OVERRIDE_PREFIX}{version}")
}

/// Returns whether this is the override of a fleet, not of another client such as the page.
pub(super) fn is_of_fleet(name: &str) -> bool {
    name.starts_with(OVERRIDE_PREFIX)
}

pub(super) struct DaemonClient {
    socket: PathBuf,
    query_client: ControlClient,
    change: ControlClient,
    /// The locked file, while this agent is the daemon's.
    claim: Option<File>,
}

impl DaemonClient {
    pub(super) fn new(socket: &Path) -> Self {
        let client = |timeout: Duration| ControlClient::new(socket, timeout);
        let (query_client, change) = (client(QUERY_TIMEOUT), client(CHANGE_TIMEOUT));
        Self { socket: socket.to_owned(), query_client, change, claim: None }
    }

    /// Claims the daemon for this agent until it exits, if the daemon has created the file to lock. Fails if
    /// another agent has claimed it: both would replace each other's configuration.
    pub(super) fn claim(&mut self) -> Result<()> {
        let lock = lock_path(&self.socket);
        let file =
            existing(File::open(&lock)).map_err(|source| Error::Open { path: lock.clone(), source })?;
        let Some(file) = file else { return Ok(()) };
        let id = |file: &File| -> io::Result<_> { Ok((file.metadata()?.dev(), file.metadata()?.ino())) };
        // The file is another one if it was removed with the socket and created again.
        let is_claimed = |held: &File| matches!((id(held), id(&file)), (Ok(held), Ok(now)) if held == now);
        if self.claim.as_ref().is_some_and(is_claimed) {
            return Ok(());
        }
        match file.try_lock() {
            Ok(()) => self.claim = Some(file),
            Err(TryLockError::WouldBlock) => {
                return Err(Error::OtherAgent { socket: self.socket.clone(), lock });
            }
            // A file system without locks.
            Err(TryLockError::Error(_)) => {}
        }
        Ok(())
    }

    /// Forwards an order, and returns whether it changed anything. An order without configuration does not
    /// remove another client's override.
    pub(super) async fn apply(&self, order: &Order) -> Result<bool, ClientError> {
        let Order { desired: DesiredConfig { target, by, why }, text } = order;
        let (by, why) = (by.clone(), why.clone());
        let verb = match text.clone() {
            None => {
                let status: Status = send(&self.query_client, Verb::Status {}).await?;
                let Some(over) = status.config.filter(|name| is_of_fleet(name)) else { return Ok(false) };
                Verb::Release(Release { by, why, over: Some(over) })
            }
            Some(text) => {
                Verb::Apply(Apply { name: name(target.version), text, by, why, ..Apply::default() })
            }
        };
        Ok(send::<Applied>(&self.change, verb).await?.changed)
    }

    pub(super) async fn poll(&self) -> Result<(Status, Health), ClientError> {
        let status = send(&self.query_client, Verb::Status {}).await?;
        Ok((status, send(&self.query_client, Verb::Health {}).await?))
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::os::unix::net::UnixListener;
    use std::thread;

    use dcqcn_control_api::Answer;

    use super::*;

    #[test]
    fn second_agent_of_a_daemon_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("control");
        let [mut first, mut second] = [DaemonClient::new(&path), DaemonClient::new(&path)];
        // Without a daemon there is nothing to claim.
        assert!(first.claim().is_ok() && second.claim().is_ok());
        File::create(lock_path(&path)).unwrap();
        assert!(first.claim().is_ok() && first.claim().is_ok());
        assert!(matches!(second.claim(), Err(Error::OtherAgent { .. })));
        // Created again by the daemon.
        fs::remove_file(lock_path(&path)).unwrap();
        File::create(lock_path(&path)).unwrap();
        assert!(first.claim().is_ok());
        assert!(second.claim().is_err());
        drop(first);
        assert!(second.claim().is_ok());
    }

    #[tokio::test]
    async fn connection_limit_is_not_a_rejection() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("control");
        let listener = UnixListener::bind(&path).unwrap();
        thread::spawn(move || {
            for stream in listener.incoming() {
                let answer =
                    serde_json::to_string(&Answer::again("user 7 has 4 connections".into())).unwrap();
                let _ = stream.unwrap().write_all((answer + "\n").as_bytes());
            }
        });
        let [by, why] = ["ada", "to try"].map(String::from);
        let target = Target { version: 7, ..Target::default() };
        let order = Order { desired: DesiredConfig { target, by, why }, text: Some(String::new()) };
        let result = DaemonClient::new(&path).apply(&order).await;
        assert!(matches!(&result, Err(ClientError::Busy(why)) if why.contains("user 7")), "{result:?}");
    }
}
