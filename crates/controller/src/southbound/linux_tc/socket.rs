//! Exchanges netlink messages with the kernel.
//!
//! # Approach
//!
//! The kernel carries out a request before the request's `send` returns, so the answer already
//! waits in the socket's buffer. The socket sends one request at a time. The socket thus stops at
//! the first refusal, and its buffer cannot overflow. A socket belongs to the network namespace in
//! which it was created.
//!
//! # Source
//!
//! `netlink(7)` defines the socket. Linux `Documentation/userspace-api/netlink/intro.rst` describes
//! interrupted dumps and the kernel's explanations of errors.

use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::socket::sockopt::{ReceiveTimeout, SetBool};
use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, connect, recv, send,
    setsockopt, socket,
};
use nix::sys::time::TimeVal;
use nix::{libc, setsockopt_impl};

use super::answer::{Answer, AnswerError, encode, is_dump};
use super::kernel::{KernelError, Message, Request};

/// Size of the buffer for a datagram in bytes. The kernel's datagrams have at most 32 KiB.
const DATAGRAM_MAX: usize = 64 << 10;
/// Maximum number of dumps for a request whose dumps are interrupted.
const DUMPS_MAX: usize = 10;

const SOL_NETLINK: i32 = 270;
const NETLINK_EXT_ACK: i32 = 11;

/// Socket option with which the kernel explains its refusals.
#[derive(Clone, Copy, Debug)]
struct Explain;

setsockopt_impl!(Explain, SOL_NETLINK, NETLINK_EXT_ACK, bool, SetBool);

/// Netlink socket of the kernel's network configuration.
#[derive(Debug)]
pub(super) struct Socket {
    fd: OwnedFd,
    /// Number of the last request.
    sequence: u32,
    buffer: Vec<u8>,
    /// Maximum time without an answer.
    wait: Duration,
}

impl Socket {
    /// Opens a socket in the network namespace of the calling thread. The kernel must answer within
    /// the time `wait`.
    pub(super) fn open(wait: Duration) -> nix::Result<Self> {
        let (family, flags) = (AddressFamily::Netlink, SockFlag::SOCK_CLOEXEC);
        let fd = socket(family, SockType::Raw, flags, SockProtocol::NetlinkRoute)?;
        setsockopt(&fd, Explain, &true)?;
        // After `connect`, no other program can send messages to the socket.
        connect(fd.as_raw_fd(), &NetlinkAddr::new(0, 0))?;
        Self::new(fd, wait)
    }

    fn new(fd: OwnedFd, wait: Duration) -> nix::Result<Self> {
        let seconds = i64::try_from(wait.as_secs()).unwrap_or(i64::MAX);
        let limit = TimeVal::new(seconds, i64::from(wait.subsec_micros()));
        setsockopt(&fd, ReceiveTimeout, &limit)?;
        Ok(Self { fd, sequence: 0, buffer: vec![0; DATAGRAM_MAX], wait })
    }

    /// Sends a request and returns the messages of the answer.
    pub(super) fn ask(&mut self, request: &Request) -> Result<Vec<Message>, KernelError> {
        for _ in 0..DUMPS_MAX {
            if let Some(messages) = self.ask_once(request)? {
                return Ok(messages);
            }
        }
        let words = &request.words;
        let problem = format!("{words}: objects changed during each of {DUMPS_MAX} readings");
        Err(KernelError::Unreachable(problem))
    }

    /// Sends a request. Returns `None` if the answer is incomplete because objects changed.
    fn ask_once(&mut self, request: &Request) -> Result<Option<Vec<Message>>, KernelError> {
        let words = &request.words;
        let failed = |problem: String| KernelError::Unreachable(format!("{words}: {problem}"));
        let invalid = |problem| KernelError::Invalid { words: words.clone(), problem };
        self.sequence = self.sequence.wrapping_add(1);
        let fd = self.fd.as_raw_fd();
        let sent = send(fd, &encode(request, self.sequence), MsgFlags::empty());
        sent.map_err(|error| failed(error.to_string()))?;
        let mut answer = Answer::new(self.sequence);
        loop {
            // With `MSG_TRUNC`, the length is that of the whole datagram.
            let datagram = match recv(fd, &mut self.buffer, MsgFlags::MSG_TRUNC) {
                Ok(length) => self.buffer.get(..length).ok_or_else(|| {
                    invalid(format!("a datagram has {length} bytes, limit {DATAGRAM_MAX}"))
                })?,
                Err(Errno::EINTR) => continue,
                // The kernel had no memory for a datagram of the dump.
                Err(Errno::ENOBUFS) if is_dump(request) => {
                    answer.interrupt();
                    continue;
                }
                Err(Errno::EAGAIN) => {
                    return Err(failed(format!("no answer within {:?}", self.wait)));
                }
                Err(error) => return Err(failed(error.to_string())),
            };
            let complete = answer.take(datagram).map_err(|error| match error {
                AnswerError::Refused(problem) => {
                    KernelError::Refused { words: words.clone(), problem }
                }
                AnswerError::Invalid(problem) => invalid(problem),
            })?;
            if complete {
                return Ok(answer.messages());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixDatagram;
    use std::thread::{self, JoinHandle};

    use super::super::answer::tests::{done, message, refusal};
    use super::super::netlink::word;
    use super::*;

    const WAIT: Duration = Duration::from_secs(20);

    fn request(flags: u16) -> Request {
        Request { words: "tc class".to_owned(), kind: 42, flags, body: vec![7; 20] }
    }

    /// Computes the datagrams of an answer from a request and the request's number.
    type Reply = fn(&[u8], u32) -> Vec<Vec<u8>>;

    /// Connects a socket to a kernel in a thread, which answers one request for each reply.
    fn kernel<const N: usize>(replies: [Reply; N]) -> (Socket, JoinHandle<()>) {
        let (ours, kernels) = UnixDatagram::pair().expect("a pair");
        let thread = thread::spawn(move || {
            for reply in replies {
                let mut request = [0; 1_024];
                let length = kernels.recv(&mut request).expect("a request");
                let sequence = word(&request, 8).map(u32::from_ne_bytes).expect("a header");
                for datagram in reply(&request[..length], sequence) {
                    kernels.send(&datagram).expect("sent");
                }
            }
        });
        (Socket::new(ours.into(), WAIT).expect("a socket"), thread)
    }

    fn object(flags: u16, sequence: u32) -> Vec<u8> {
        message(40, flags, sequence, &[5; 20])
    }

    #[test]
    fn an_interrupted_dump_is_requested_again() {
        let (mut socket, thread) = kernel([
            |_, n| vec![object(0x12, n), object(2, n), done(2, n)],
            // The beginning of the second answer is from an earlier request.
            |_, n| vec![object(2, n - 1), [object(2, n), done(2, n)].concat()],
        ]);
        let messages = socket.ask(&request(0x300)).expect("the second dump is whole");
        assert_eq!(messages, [Message { body: vec![5; 20] }]);
        thread.join().expect("two requests");
    }

    #[test]
    fn dumps_that_are_always_interrupted_end_with_an_error() {
        let interrupted: Reply = |_, n| vec![done(0x12, n)];
        let (mut socket, thread) = kernel([interrupted; DUMPS_MAX]);
        let error = socket.ask(&request(0x300)).expect_err("never whole").to_string();
        assert!(error.starts_with("tc class: ") && error.contains("10 readings"), "{error}");
        thread.join().expect("ten requests");
    }

    #[test]
    fn a_refusal_names_the_request_and_the_reason() {
        let (mut socket, thread) =
            kernel([|request, _| vec![refusal(Errno::ENOENT, "Not found", request)]]);
        let error = socket.ask(&request(0)).expect_err("refused");
        let problem = "Not found (ENOENT: No such file or directory)".to_owned();
        assert_eq!(error, KernelError::Refused { words: "tc class".to_owned(), problem });
        thread.join().expect("one request");
    }

    #[test]
    fn a_datagram_beyond_the_buffer_is_refused() {
        let (mut socket, thread) = kernel([|_, n| vec![message(40, 2, n, &[0; DATAGRAM_MAX])]]);
        let error = socket.ask(&request(0x300)).expect_err("too long");
        assert!(matches!(error, KernelError::Invalid { .. }), "{error}");
        thread.join().expect("one request");
    }

    #[test]
    fn a_silent_kernel_is_not_reachable() {
        let (ours, _silent) = UnixDatagram::pair().expect("a pair");
        let mut socket = Socket::new(ours.into(), Duration::from_millis(1)).expect("a socket");
        let error = socket.ask(&request(0)).expect_err("no answer");
        let text = "tc class: no answer within 1ms".to_owned();
        assert_eq!(error, KernelError::Unreachable(text));
    }
}
