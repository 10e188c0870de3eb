//! Continues a session that the former process of the switch kept.
//!
//! # Problem
//! The `vhost` crate remembers which features a driver acknowledged, and it answers no request that
//! needs an answer before it has seen `SET_PROTOCOL_FEATURES`. The driver negotiated with the
//! former process, and does not negotiate again.
//!
//! # Approach
//! The handler first gets the negotiation from this module, over a socket pair. Then the handler's
//! descriptor is replaced by the driver's connection ([`negotiate`]). These steps handle no data of
//! the driver, so the thread takes them before it is confined, and a confined session can neither
//! make socket pairs nor replace descriptors. The confined session applies the rest of the state
//! ([`Session::resume`]).

use std::io::Write as _;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex};

use vhost::vhost_user::{BackendReqHandler, Error, Result};

use super::session::Session;
use crate::port::kept::KeptSession;
use crate::port::passing::replace;

const GET_FEATURES: u32 = 1;
const SET_FEATURES: u32 = 2;
const GET_PROTOCOL_FEATURES: u32 = 15;
const SET_PROTOCOL_FEATURES: u32 = 16;
const VERSION: u32 = 1;
/// Length in bytes of a number in a message.
const NUMBER: u32 = 8;

/// Reads the messages of a driver and passes them to a session.
pub(super) type Handler = BackendReqHandler<Mutex<Session>>;

/// Makes the handler of a new session for the driver at the other end of `connection`, with the
/// negotiation of the session `kept`.
///
/// # Errors
/// Returns an error if the features do not fit the port, or if no file descriptor is free.
pub(super) fn negotiate(
    session: &Arc<Mutex<Session>>,
    connection: &UnixStream,
    kept: &KeptSession,
) -> Result<Handler> {
    let failed = Error::ReqHandlerError;
    let (ours, mut driver) = UnixStream::pair().map_err(failed)?;
    let mut handler = BackendReqHandler::from_stream(ours, Arc::clone(session));
    let mut requests = vec![(GET_FEATURES, None), (SET_FEATURES, Some(kept.features))];
    if kept.protocol != 0 {
        let acknowledged = (SET_PROTOCOL_FEATURES, Some(kept.protocol));
        requests.extend([(GET_PROTOCOL_FEATURES, None), acknowledged]);
    }
    for (request, number) in requests {
        driver.write_all(&message(request, number)).map_err(failed)?;
        handler.handle_request()?;
    }
    replace(&handler, connection).map_err(failed)?;
    Ok(handler)
}

/// A message of the vhost-user protocol: request, version and length, and a number or nothing.
fn message(request: u32, number: Option<u64>) -> Vec<u8> {
    let len = number.map_or(0, |_| NUMBER);
    let header = [request, VERSION, len].map(u32::to_ne_bytes);
    let number = number.map(u64::to_ne_bytes);
    [header.as_flattened(), number.as_ref().map_or(&[], |number| &number[..])].concat()
}
