//! One page in a browser: this host by its controller's socket, and the fleet by etcd where that is requested.
//!
//! What is looked at is gathered here, once for all who look; what nobody looks at is kept for ten minutes and told nobody. The page is
//! embedded, with what draws its charts: nothing is fetched from anywhere else.

mod answers;
mod assets;
mod board;
mod clock;
mod edit;
mod events;
mod fleet;
mod host;
mod http;
mod series;
mod write;

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use dcqcn_control_api::ControlClient;
use serde_json::json;
use tokio::net::TcpListener;

use answers::PageState;
use board::Board;
use http::Guard;
use write::Token;

use crate::store::Store;

/// How long an answer of the controller may take that waits for nothing.
const SOON: Duration = Duration::from_secs(5);
/// How long a change may take: no longer than the controller itself gives it.
const CHANGE: Duration = Duration::from_secs(310);

/// What is served, where, to whom.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    /// Where the page is.
    pub(crate) listen: SocketAddr,
    /// This host's controller.
    pub(crate) control: PathBuf,
    /// The file with the token that lets somebody change something; nobody may if none.
    pub(crate) allow_write: Option<PathBuf>,
    /// Names by which the page may be requested.
    pub(crate) names: Vec<String>,
    /// This host's own name.
    pub(crate) host: String,
    /// Who it is that changes a rollout over the page.
    pub(crate) who: String,
}

/// Serves the page for as long as it is waited for; with `store`, of that fleet too.
///
/// # Errors
/// It cannot listen there, the token is none, or it would be sent in the clear.
pub(crate) async fn run(options: Options, store: Option<Store>) -> Result<()> {
    let Options { listen, control, allow_write, names, host, who } = options;
    let is_own = |ip: IpAddr| ip.is_loopback();
    ensure!(
        allow_write.is_none() || is_own(listen.ip()),
        "the token would cross the network in the clear: with --allow-write listen on a loopback address, and have a proxy with TLS \
         or an ssh tunnel (`ssh -L`) lead to it"
    );
    let token = allow_write.as_deref().map(Token::read).transpose()?;
    let listener = TcpListener::bind(listen).await.with_context(|| format!("cannot listen on {listen}"))?;
    let address = listener.local_addr()?;
    let board = Arc::new(Board::new());
    board.say("host", json!(host));
    board.say("writable", json!(token.is_some()));
    let soon = ControlClient::new(&control, SOON);
    let state = PageState {
        board: Arc::clone(&board),
        soon: soon.clone(),
        change: ControlClient::new(&control, CHANGE),
        store: store.clone(),
        who,
    };
    let fleet = async {
        match store {
            Some(store) => fleet::follow(Arc::clone(&board), store).await,
            None => std::future::pending().await,
        }
    };
    tracing::info!(%address, writable = token.is_some(), "serving the page");
    eprintln!("http://{address}/");
    let guard = Arc::new(Guard { names, token });
    tokio::select! {
        ended = http::serve(listener, answers::router(state), guard) => match ended? {},
        () = host::follow(Arc::clone(&board), soon) => Ok(()),
        () = fleet => Ok(()),
    }
}
