//! Connects a command to the daemon of a switch or to a controller. Each error is one line of text.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use hyper_util::rt::TokioIo;
use penstock_control::api;
use penstock_controller::wire::v1::GetViewRequest;
use penstock_controller::wire::v1::operator_service_client::OperatorServiceClient;
use tokio::net::UnixStream;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status};
use tower::service_fn;

use crate::wire::REPLY_BYTES_MAX;
use crate::wire::host_service_client::HostServiceClient;

pub type Client = HostServiceClient<Channel>;

/// Time limit of a request. Adding a port may wait for the kernel, but never for a guest.
const REQUEST_LIMIT: Duration = Duration::from_secs(30);

/// Text of tonic's status if the other side speaks no gRPC, such as a port's vhost-user socket.
const NO_GRPC: &str = "transport error";

/// A refused request, with the daemon's text.
#[derive(Debug)]
pub struct Refused {
    text: String,
    /// Whether the daemon refused the request because the daemon does not know this kind of
    /// request.
    unknown: bool,
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::error::Error for Refused {}

impl Refused {
    #[must_use]
    pub fn from_status(status: &Status) -> Self {
        let text = match status.code() {
            Code::Unavailable | Code::Cancelled => {
                format!("daemon: the connection broke ({}); see its log", status.message())
            }
            Code::DeadlineExceeded => {
                format!(
                    "daemon: no answer in time ({}); see `penstock host show`",
                    status.message()
                )
            }
            Code::Unimplemented => {
                "daemon: unknown request, because the daemon is older than this program; restart \
                 the daemon"
                    .to_owned()
            }
            Code::Unknown if status.message() == NO_GRPC => {
                "the connection broke before an answer: the program that listens is no daemon of \
                 Penstock, or it ended; name the daemon's socket with --socket"
                    .to_owned()
            }
            _ if status.message().is_empty() => format!("daemon: {}", status.code()),
            _ => status.message().to_owned(),
        };
        Self { text, unknown: status.code() == Code::Unimplemented }
    }
}

/// Converts the status of a failed request to an error.
pub fn refused(status: Status) -> anyhow::Error {
    Refused::from_status(&status).into()
}

/// Program that should listen on a socket: the daemon of a switch, or a controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whose {
    Host,
    Controller,
}

/// Awaits the requests in `asked`, which go to the kind of program that `whose` names. If a
/// controller answers instead of a switch's daemon, or a daemon instead of a controller, the error
/// says so and names the remedy.
///
/// # Errors
/// Returns an error if a request in `asked` fails.
pub async fn at_socket_of<T>(
    whose: Whose,
    socket: &Path,
    asked: impl Future<Output = anyhow::Result<T>>,
) -> anyhow::Result<T> {
    let answer = asked.await;
    let Err(error) = &answer else { return answer };
    if !error.downcast_ref::<Refused>().is_some_and(|refused| refused.unknown) {
        return answer;
    }
    let at = socket.display();
    match whose {
        Whose::Host if is_controllers(socket).await => anyhow::bail!(
            "socket {at}: a controller answers, not a switch; name the switch's socket with \
             --socket or PENSTOCK_SOCKET, or use `penstock controller`"
        ),
        Whose::Controller if is_hosts(socket).await => anyhow::bail!(
            "socket {at}: the daemon of a switch answers, not a controller; name the controller's \
             socket with --socket or PENSTOCK_SOCKET"
        ),
        _ => answer,
    }
}

async fn is_hosts(socket: &Path) -> bool {
    let Ok(mut client) = connect(socket).await else { return false };
    client.get_status(timed(api::GetStatusRequest {})).await.is_ok()
}

async fn is_controllers(socket: &Path) -> bool {
    let Ok(channel) = channel(socket, "").await else { return false };
    let status = GetViewRequest { what: "status".to_owned(), name: String::new() };
    OperatorServiceClient::new(channel).get_view(timed(status)).await.is_ok()
}

/// Connects to the daemon.
///
/// # Errors
/// Returns an error if no program listens on the socket, or if this user may not connect.
pub async fn connect(socket: &Path) -> anyhow::Result<Client> {
    const ABSENT: &str = "the daemon is not running; start it with `systemctl start penstock` or \
                          `penstock host run --config FILE`, or name another socket with --socket";
    Ok(HostServiceClient::new(channel(socket, ABSENT).await?)
        .max_decoding_message_size(REPLY_BYTES_MAX)
        .max_encoding_message_size(REPLY_BYTES_MAX))
}

/// Connects to a unix socket. `absent` is the error's text if no program listens.
///
/// # Errors
/// Returns an error in the same cases as [`connect`].
pub async fn channel(socket: &Path, absent: &str) -> anyhow::Result<Channel> {
    // A transport error of gRPC would hide the errno.
    if let Err(error) = UnixStream::connect(socket).await {
        return Err(cannot_connect(socket, &error, absent));
    }
    let path: PathBuf = socket.to_owned();
    let connector = service_fn(move |_| {
        let path = path.clone();
        async move { UnixStream::connect(path).await.map(TokioIo::new) }
    });
    // gRPC requires an address, but never looks up this address.
    let endpoint = Endpoint::from_static("http://penstock.invalid");
    endpoint
        .connect_with_connector(connector)
        .await
        .map_err(|error| anyhow::anyhow!("socket {}: {error}", socket.display()))
}

fn cannot_connect(socket: &Path, error: &std::io::Error, absent: &str) -> anyhow::Error {
    let at = socket.display();
    match error.kind() {
        std::io::ErrorKind::NotFound | std::io::ErrorKind::ConnectionRefused => {
            anyhow::anyhow!("socket {at}: {absent}")
        }
        std::io::ErrorKind::PermissionDenied => anyhow::anyhow!(
            "socket {at}: permission denied, only the daemon's user may connect; use sudo"
        ),
        _ => anyhow::anyhow!("socket {at}: {error}"),
    }
}

/// Returns a request that ends after [`REQUEST_LIMIT`].
pub fn timed<T>(message: T) -> tonic::Request<T> {
    let mut request = tonic::Request::new(message);
    request.set_timeout(REQUEST_LIMIT);
    request
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_daemon_is_named_with_the_way_to_start_it() {
        let error = std::io::Error::from(std::io::ErrorKind::NotFound);
        let text = cannot_connect(Path::new("/run/x.sock"), &error, "start it").to_string();
        assert_eq!(text, "socket /run/x.sock: start it");
    }

    #[test]
    fn the_daemons_own_words_stand_alone() {
        let status = Status::not_found("port vm9: there is no such port; see `penstock port list`");
        assert_eq!(
            refused(status).to_string(),
            "port vm9: there is no such port; see `penstock port list`"
        );
        assert_eq!(
            refused(Status::unknown("transport error")).to_string(),
            "the connection broke before an answer: the program that listens is no daemon of \
             Penstock, or it ended; name the daemon's socket with --socket"
        );
        assert_eq!(
            refused(Status::unimplemented("")).to_string(),
            "daemon: unknown request, because the daemon is older than this program; restart the \
             daemon"
        );
    }
}
