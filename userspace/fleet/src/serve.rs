//! Web page of this host, read from its daemon's socket, and optionally of the fleet, read from etcd.
//!
//! Metrics are sampled once for all clients and stored for ten minutes. The page and its chart library are
//! embedded in the binary; the page loads nothing from other servers.

mod answers;
mod board;
mod fleet;
mod guard;
mod host;
mod series;
mod write;

use answers::Handler;
use board::Board;
use guard::Guard;
use write::Token;

use crate::prelude::*;

const QUERY_TIMEOUT: Duration = Duration::from_secs(5);
/// Time limit for changes, the same as the daemon's own.
const CHANGE_TIMEOUT: Duration = Duration::from_secs(310);

#[derive(Clone, Debug)]
pub(crate) struct Options {
    pub(crate) listen: SocketAddr,
    pub(crate) control: PathBuf,
    /// File with the token for changes; `None` makes the page read-only.
    pub(crate) allow_write: Option<PathBuf>,
    pub(crate) names: Vec<String>,
    pub(crate) host: String,
    pub(crate) author: String,
}

/// Serves the page until it is dropped, with `store` also for that fleet.
pub(crate) async fn run(options: Options, store: Option<Store>) -> Result<()> {
    let Options { listen, control, allow_write, names, host, author } = options;
    if allow_write.is_some() && !listen.ip().is_loopback() {
        return Err(Error::TokenInClear(listen));
    }
    let token = allow_write.map(Token::new).transpose()?;
    let failed = |source| Error::Listen { address: listen, source };
    let listener = TcpListener::bind(listen).await.map_err(failed)?;
    let address = listener.local_addr().map_err(failed)?;
    let board = Arc::new(Board::new());
    board.publish("host", json!(host));
    board.publish("writable", json!(token.is_some()));
    let query_client = ControlClient::new(&control, QUERY_TIMEOUT);
    let clients = [query_client.clone(), ControlClient::new(&control, CHANGE_TIMEOUT)];
    let handler = Handler::new(Arc::clone(&board), clients, store.clone(), author);
    let fleet = async {
        match store {
            Some(store) => fleet::follow(Arc::clone(&board), store).await,
            None => std::future::pending().await,
        }
    };
    tracing::info!(%address, writable = token.is_some(), "serving the page");
    message(format_args!("http://{address}/"));
    let router = guard::guarded(answers::router(handler), Arc::new(Guard { names, token }));
    let mut server = Server::new(router, Limits::PAGE);
    tokio::select! {
        () = server.accept(&listener) => Ok(()),
        () = host::follow(Arc::clone(&board), query_client) => Ok(()),
        () = fleet => Ok(()),
    }
}
