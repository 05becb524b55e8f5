//! The controller of this host, asked on a thread of its own.

use std::path::Path;
use std::time::Duration;

use dcqcn_control_api::{Applied, Apply, ClientError, ControlClient, Health, Release, Status, Verb};

use super::wanted::Order;
use crate::ask::ask;
use crate::record::Want;

/// How long an answer may take that waits for nothing.
const SOON: Duration = Duration::from_secs(10);
/// How long a change may take: no longer than the controller itself gives it.
const CHANGE: Duration = Duration::from_secs(310);

/// How it went.
#[derive(Debug)]
pub(super) enum Obeyed {
    /// It is active, and was not before if `changed`.
    InForce { changed: bool },
    /// The controller says no.
    Refused(String),
    /// The controller has not done it, and says that it is worth asking again.
    Busy(String),
    /// The controller does not answer.
    Unreachable(String),
}

/// What a version is called on a host.
pub(super) fn name(version: u64) -> String {
    format!("fleet {version}")
}

/// The controller of this host.
pub(super) struct Controller {
    soon: ControlClient,
    change: ControlClient,
}

impl Controller {
    pub(super) fn new(socket: &Path) -> Self {
        Self { soon: ControlClient::new(socket, SOON), change: ControlClient::new(socket, CHANGE) }
    }

    /// Has it do what is wanted. What is active already is left unchanged.
    pub(super) async fn obey(&self, order: &Order) -> Obeyed {
        let Order { want: Want { target, by, why }, text } = order;
        let (by, why) = (by.clone(), why.clone());
        let verb = match text {
            None => Verb::Release(Release { by, why }),
            Some(text) => {
                let name = name(target.version);
                Verb::Apply(Apply { name, text: text.clone(), by, why, confirm_within_s: None, over: None })
            }
        };
        match ask::<Applied>(&self.change, verb).await {
            Ok(Applied { changed, .. }) => Obeyed::InForce { changed },
            Err(error) if error.is_refusal() => Obeyed::Refused(error.to_string()),
            Err(error @ ClientError::Busy(_)) => Obeyed::Busy(error.to_string()),
            Err(error) => Obeyed::Unreachable(error.to_string()),
        }
    }

    /// How it does, and what it counts.
    ///
    /// # Errors
    /// In a sentence.
    pub(super) async fn look(&self) -> Result<(Status, Health), String> {
        let status = ask(&self.soon, Verb::Status {}).await.map_err(|error| error.to_string())?;
        let health = ask(&self.soon, Verb::Health {}).await.map_err(|error| error.to_string())?;
        Ok((status, health))
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::os::unix::net::UnixListener;
    use std::thread;

    use dcqcn_control_api::Answer;

    use super::*;
    use crate::record::Target;

    #[tokio::test]
    async fn controller_at_its_limit_is_no_refusal() {
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
        let order = Order { want: Want { target, by, why }, text: Some(String::new()) };
        let obeyed = Controller::new(&path).obey(&order).await;
        assert!(matches!(&obeyed, Obeyed::Busy(why) if why.contains("user 7")), "{obeyed:?}");
    }
}
