//! A conversation with a switch's redis, limited in bytes and in time.

use std::collections::BTreeMap;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, ErrorKind, RedisConnectionInfo, RedisError, Value};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio::task::AbortHandle;

use super::plan::{CONFIG_DB, Op};
use super::settings::{Endpoint, Settings};
use super::tables::Tables;

/// Maximum number of bytes that are read in one conversation.
const ANSWERS_MAX: usize = 8 << 20;
/// Time limit of a conversation. It is shorter in tests of servers that never answer.
pub(super) const TIME_MAX: Duration = Duration::from_secs(if cfg!(test) { 2 } else { 10 });

/// Why a conversation failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum WireError {
    Unreachable(String),
    Refused(String),
    Rubbish(String),
}

impl From<RedisError> for WireError {
    fn from(error: RedisError) -> Self {
        let text = error.to_string();
        match error.kind() {
            ErrorKind::Server(_) | ErrorKind::Extension => Self::Refused(text),
            ErrorKind::Parse | ErrorKind::UnexpectedReturnType => Self::Rubbish(text),
            _ => Self::Unreachable(text),
        }
    }
}

trait Stream: AsyncRead + AsyncWrite + Send {}
impl<T: AsyncRead + AsyncWrite + Send> Stream for T {}

/// A stream that fails after too many bytes were read.
struct Bounded {
    inner: Pin<Box<dyn Stream>>,
    left: usize,
}

impl AsyncRead for Bounded {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let read = self.inner.as_mut().poll_read(cx, buf);
        let more = buf.filled().len() - before;
        match self.left.checked_sub(more) {
            Some(left) => self.left = left,
            None => {
                let text = format!("it answered more than {ANSWERS_MAX} bytes");
                return Poll::Ready(Err(io::Error::other(text)));
            }
        }
        read
    }
}

impl AsyncWrite for Bounded {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.inner.as_mut().poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.inner.as_mut().poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.inner.as_mut().poll_shutdown(cx)
    }
}

/// A connection to redis. It is not shared, because watched keys belong to a connection.
pub(super) struct Wire {
    connection: MultiplexedConnection,
    task: AbortHandle,
}

impl Drop for Wire {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Wire {
    /// Connects and selects a database.
    pub(super) async fn connect(
        endpoint: &Endpoint,
        settings: &Settings,
        database: i64,
    ) -> Result<Self, WireError> {
        let failed = |error: io::Error| WireError::Unreachable(error.to_string());
        let inner: Pin<Box<dyn Stream>> = match endpoint {
            Endpoint::Unix(path) => Box::pin(UnixStream::connect(path).await.map_err(failed)?),
            Endpoint::Tcp(host, port) => {
                Box::pin(TcpStream::connect((host.as_str(), *port)).await.map_err(failed)?)
            }
        };
        let mut info = RedisConnectionInfo::default().set_db(database).set_skip_set_lib_name();
        if let Some(password) = &settings.password {
            info = info.set_password(password);
        }
        // The time limit covers the whole conversation.
        let config = AsyncConnectionConfig::new().set_response_timeout(None);
        let stream = Bounded { inner, left: ANSWERS_MAX };
        let (connection, drive) =
            MultiplexedConnection::new_with_config(&info, stream, config).await?;
        Ok(Self { connection, task: tokio::spawn(drive).abort_handle() })
    }

    /// Selects the database for later commands.
    pub(super) async fn select(&mut self, database: i64) -> Result<(), WireError> {
        Ok(redis::cmd("SELECT").arg(database).query_async(&mut self.connection).await?)
    }

    /// Makes the next [`commit`](Self::commit) fail if one of these keys changes.
    pub(super) async fn watch(&mut self, keys: &[String]) -> Result<(), WireError> {
        Ok(redis::cmd("WATCH").arg(keys).query_async(&mut self.connection).await?)
    }

    /// Returns the keys that match a pattern.
    pub(super) async fn names(&mut self, pattern: &str) -> Result<Vec<String>, WireError> {
        Ok(redis::cmd("KEYS").arg(pattern).query_async(&mut self.connection).await?)
    }

    /// Returns fields and values of those keys that exist.
    pub(super) async fn hashes(&mut self, keys: &[String]) -> Result<Tables, WireError> {
        if keys.is_empty() {
            return Ok(Tables::new());
        }
        let mut pipe = redis::pipe();
        for key in keys {
            pipe.cmd("HGETALL").arg(key);
        }
        let all: Vec<BTreeMap<String, String>> = pipe.query_async(&mut self.connection).await?;
        if all.len() != keys.len() {
            let text = format!("{} answers to {} questions", all.len(), keys.len());
            return Err(WireError::Rubbish(text));
        }
        let there = keys.iter().cloned().zip(all).filter(|(_, fields)| !fields.is_empty());
        Ok(there.collect())
    }

    /// Executes `ops` atomically. Returns false, with no effect, if a watched key has changed.
    /// CONFIG_DB is selected before and after.
    pub(super) async fn commit(&mut self, ops: &[Op]) -> Result<bool, WireError> {
        let mut pipe = redis::pipe();
        pipe.atomic();
        for op in ops {
            let (arguments, elsewhere) = (op.arguments(), op.database() != CONFIG_DB);
            if elsewhere {
                pipe.cmd("SELECT").arg(op.database());
            }
            pipe.cmd(arguments[0]).arg(&arguments[1..]);
            if elsewhere {
                pipe.cmd("SELECT").arg(CONFIG_DB);
            }
        }
        match pipe.query_async(&mut self.connection).await? {
            Value::Nil => Ok(false),
            _ => Ok(true),
        }
    }
}
