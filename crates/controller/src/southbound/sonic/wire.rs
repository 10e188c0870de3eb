//! Connects to a switch's redis. All requests on a connection together have a limit in bytes and in
//! time.

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

/// Maximum number of bytes that the driver reads from one connection to redis.
const ANSWERS_MAX: usize = 8 << 20;
/// Time limit for all requests of an operation. The time limit is shorter in unit tests, because
/// some servers of the tests never answer.
pub(super) const TIME_MAX: Duration = Duration::from_secs(if cfg!(test) { 2 } else { 10 });

/// Reason why a request to redis failed.
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

/// Stream that returns an error after too many bytes were read.
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
                let text = format!("the answer has more than {ANSWERS_MAX} bytes");
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

/// Connection to redis for a single operation, because watched keys belong to a connection.
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
    /// Connects to redis and selects a database.
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
        if let Some(path) = &settings.password_file {
            let failed =
                |error: io::Error| WireError::Unreachable(format!("{}: {error}", path.display()));
            let password = tokio::fs::read_to_string(path).await.map_err(failed)?;
            info = info.set_password(password.trim_end());
        }
        // A single answer has no time limit, because the caller limits the whole conversation.
        let config = AsyncConnectionConfig::new().set_response_timeout(None);
        let stream = Bounded { inner, left: ANSWERS_MAX };
        let (connection, drive) =
            MultiplexedConnection::new_with_config(&info, stream, config).await?;
        Ok(Self { connection, task: tokio::spawn(drive).abort_handle() })
    }

    /// Returns the text that identifies the present run of redis. `None` if redis does not tell.
    pub(super) async fn run(&mut self) -> Result<Option<String>, WireError> {
        let info: String =
            redis::cmd("INFO").arg("server").query_async(&mut self.connection).await?;
        let run = info.lines().find_map(|line| line.strip_prefix("run_id:"));
        Ok(run.map(|run| run.trim().to_owned()))
    }

    /// Selects the database of redis for later commands.
    pub(super) async fn select(&mut self, database: i64) -> Result<(), WireError> {
        Ok(redis::cmd("SELECT").arg(database).query_async(&mut self.connection).await?)
    }

    /// Makes the next [`commit`](Self::commit) return false if one of `keys` changes.
    pub(super) async fn watch(&mut self, keys: &[String]) -> Result<(), WireError> {
        Ok(redis::cmd("WATCH").arg(keys).query_async(&mut self.connection).await?)
    }

    /// Returns the keys of the selected database that match a pattern.
    pub(super) async fn names(&mut self, pattern: &str) -> Result<Vec<String>, WireError> {
        Ok(redis::cmd("KEYS").arg(pattern).query_async(&mut self.connection).await?)
    }

    /// Returns the fields and values of those of `keys` that exist.
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
            let text = format!("the switch sent {} answers to {} requests", all.len(), keys.len());
            return Err(WireError::Rubbish(text));
        }
        let there = keys.iter().cloned().zip(all).filter(|(_, fields)| !fields.is_empty());
        Ok(there.collect())
    }

    /// Returns those of `keys` that exist in the selected database.
    pub(super) async fn existing(&mut self, keys: Vec<String>) -> Result<Vec<String>, WireError> {
        if keys.is_empty() {
            return Ok(keys);
        }
        let mut pipe = redis::pipe();
        for key in &keys {
            pipe.cmd("EXISTS").arg(key);
        }
        let numbers: Vec<u64> = pipe.query_async(&mut self.connection).await?;
        let there = keys.into_iter().zip(numbers).filter(|(_, number)| *number > 0);
        Ok(there.map(|(key, _)| key).collect())
    }

    /// Returns the values of `fields` of each of `keys`, in the order of `keys` and `fields`.
    pub(super) async fn values(
        &mut self,
        keys: &[String],
        fields: &[&str],
    ) -> Result<Vec<Vec<Option<String>>>, WireError> {
        if keys.is_empty() {
            return Ok(Vec::new());
        }
        let mut pipe = redis::pipe();
        for key in keys {
            pipe.cmd("HMGET").arg(key).arg(fields);
        }
        let all: Vec<Vec<Option<String>>> = pipe.query_async(&mut self.connection).await?;
        if all.len() != keys.len() || all.iter().any(|values| values.len() != fields.len()) {
            let text = format!("the switch sent {} answers to {} requests", all.len(), keys.len());
            return Err(WireError::Rubbish(text));
        }
        Ok(all)
    }

    /// Executes `ops` atomically. If a watched key has changed, executes nothing and returns false.
    /// The caller must have selected CONFIG_DB, which stays selected.
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
