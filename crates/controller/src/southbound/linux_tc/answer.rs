//! Collects the kernel's answer to a request from the datagrams that arrive.
//!
//! # Approach
//!
//! The answer to a request for all objects (a dump) consists of one message for each object, in
//! several datagrams, and an end. The answer to a change is an acknowledgement. The answer has the
//! sequence number of the request. If objects changed during a dump, the kernel marks the dump as
//! interrupted, and the dump may lack objects. The driver then requests the dump again.
//!
//! # Source
//!
//! `linux/netlink.h` defines the messages. Linux `net/netlink/af_netlink.c` sends them.

use nix::errno::Errno;

use super::kernel::{Message, Request};
use super::netlink::{MESSAGE_HEADER, NLM_F_DUMP, attributes, put_header, text, word};

/// Maximum size of the kernel's answer to a request, in bytes.
const ANSWER_MAX: usize = 16 << 20;

const NLMSG_NOOP: u16 = 1;
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const NLMSG_OVERRUN: u16 = 4;

const NLM_F_REQUEST: u16 = 1;
const NLM_F_ACK: u16 = 4;
/// Flag of a dump during which objects changed.
const NLM_F_DUMP_INTR: u16 = 0x10;
/// Flag of an error that does not repeat the request.
const NLM_F_CAPPED: u16 = 0x100;
/// Flag of an error that contains attributes.
const NLM_F_ACK_TLVS: u16 = 0x200;
/// Attribute with the kernel's explanation of an error.
const NLMSGERR_ATTR_MSG: u16 = 1;

/// Reason why an answer does not contain the requested objects or the confirmation of a change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum AnswerError {
    /// The kernel refused the request. The text is the reason.
    Refused(String),
    /// The answer is not valid.
    Invalid(String),
}

/// Part of an answer that has arrived.
#[derive(Debug)]
pub(super) struct Answer {
    sequence: u32,
    size: usize,
    messages: Vec<Message>,
    interrupted: bool,
}

/// Netlink message in a datagram.
struct Frame<'a> {
    kind: u16,
    flags: u16,
    sequence: u32,
    body: &'a [u8],
}

/// Returns true if the answer to a request is a dump.
pub(super) fn is_dump(request: &Request) -> bool {
    request.flags & NLM_F_DUMP == NLM_F_DUMP
}

/// Encodes a request with its header.
pub(super) fn encode(request: &Request, sequence: u32) -> Vec<u8> {
    let Request { kind, flags, body, .. } = request;
    // The end of a dump is its acknowledgement.
    let acknowledge = if is_dump(request) { 0 } else { NLM_F_ACK };
    let mut bytes = Vec::with_capacity(MESSAGE_HEADER + body.len());
    put_header(&mut bytes, body.len(), *kind, flags | NLM_F_REQUEST | acknowledge, sequence);
    bytes.extend(body);
    bytes
}

/// Returns the messages of a datagram, or `None` if a message is not whole.
fn frames(mut datagram: &[u8]) -> Option<Vec<Frame<'_>>> {
    let mut frames = Vec::new();
    while !datagram.is_empty() {
        let length = usize::try_from(u32::from_ne_bytes(word(datagram, 0)?)).ok()?;
        frames.push(Frame {
            kind: u16::from_ne_bytes(word(datagram, 4)?),
            flags: u16::from_ne_bytes(word(datagram, 6)?),
            sequence: u32::from_ne_bytes(word(datagram, 8)?),
            body: datagram.get(MESSAGE_HEADER..length)?,
        });
        datagram = datagram.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    Some(frames)
}

impl Answer {
    /// Creates the answer to the request with the number `sequence`.
    pub(super) fn new(sequence: u32) -> Self {
        Self { sequence, size: 0, messages: Vec::new(), interrupted: false }
    }

    /// Marks the answer as incomplete.
    pub(super) fn interrupt(&mut self) {
        self.interrupted = true;
    }

    /// Adds the messages of a datagram. Returns true if the answer has reached its end. Messages of
    /// earlier answers are ignored.
    pub(super) fn take(&mut self, datagram: &[u8]) -> Result<bool, AnswerError> {
        let invalid = |problem: String| Err(AnswerError::Invalid(problem));
        self.size = self.size.saturating_add(datagram.len());
        if self.size > ANSWER_MAX {
            return invalid(format!("the answer has more than {ANSWER_MAX} bytes"));
        }
        let Some(frames) = frames(datagram) else {
            return invalid("a message is incomplete".to_owned());
        };
        let own = self.sequence;
        for Frame { kind, flags, body, .. } in frames.iter().filter(|f| f.sequence == own) {
            self.interrupted |= flags & NLM_F_DUMP_INTR != 0 || *kind == NLMSG_OVERRUN;
            match *kind {
                NLMSG_NOOP | NLMSG_OVERRUN => {}
                NLMSG_ERROR | NLMSG_DONE => return verdict(*kind, *flags, body).map(|()| true),
                _ => self.messages.push(Message { body: body.to_vec() }),
            }
        }
        Ok(false)
    }

    /// Returns the messages of the answer, or `None` if the answer is incomplete.
    pub(super) fn messages(self) -> Option<Vec<Message>> {
        (!self.interrupted).then_some(self.messages)
    }
}

/// Returns an error if the end of an answer says that the kernel refused the request.
fn verdict(kind: u16, flags: u16, end: &[u8]) -> Result<(), AnswerError> {
    let Some(code) = word(end, 0).map(i32::from_ne_bytes) else {
        return Err(AnswerError::Invalid("the end has no error code".to_owned()));
    };
    if code >= 0 {
        return Ok(());
    }
    let error = Errno::from_raw(code.saturating_neg());
    let reason = match explanation(kind, flags, end) {
        Some(text) => format!("{text} ({error})"),
        None => error.to_string(),
    };
    let remedy = match error {
        Errno::EPERM => "; the controller needs CAP_NET_ADMIN",
        _ => "",
    };
    Err(AnswerError::Refused(reason + remedy))
}

/// Returns the kernel's explanation of an error, if the kernel has one.
fn explanation(kind: u16, flags: u16, end: &[u8]) -> Option<String> {
    if flags & NLM_F_ACK_TLVS == 0 {
        return None;
    }
    // An error's code precedes the request: only the request's header, or the whole request.
    let request = match kind {
        NLMSG_DONE => 0,
        _ if flags & NLM_F_CAPPED != 0 => MESSAGE_HEADER,
        _ => usize::try_from(u32::from_ne_bytes(word(end, 4)?)).ok()?,
    };
    let all = attributes(end.get(4 + request.checked_next_multiple_of(4)?..)?)?;
    all.get(&NLMSGERR_ATTR_MSG).map(|message| text(message))
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::netlink::put;
    use super::*;

    /// Returns a message of the kernel with its header.
    pub(in super::super) fn message(kind: u16, flags: u16, sequence: u32, body: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        put_header(&mut bytes, body.len(), kind, flags, sequence);
        bytes.extend(body);
        bytes
    }

    /// Returns the end of a dump.
    pub(in super::super) fn done(flags: u16, sequence: u32) -> Vec<u8> {
        message(NLMSG_DONE, flags, sequence, &[0; 4])
    }

    /// Returns a refusal, which repeats `request`.
    pub(in super::super) fn refusal(error: Errno, explained: &str, request: &[u8]) -> Vec<u8> {
        let code = -(error as i32);
        let mut body = [&code.to_ne_bytes()[..], request].concat();
        put(&mut body, NLMSGERR_ATTR_MSG, &[explained.as_bytes(), &[0]].concat());
        let sequence = word(request, 8).map(u32::from_ne_bytes).expect("a header");
        message(NLMSG_ERROR, NLM_F_ACK_TLVS, sequence, &body)
    }

    fn request(flags: u16) -> Request {
        Request { words: "words".to_owned(), kind: 40, flags, body: vec![7; 20] }
    }

    fn refused(text: &str) -> Result<bool, AnswerError> {
        Err(AnswerError::Refused(text.to_owned()))
    }

    #[test]
    fn a_dump_has_the_messages_of_all_its_datagrams() {
        let mut answer = Answer::new(9);
        let first = [message(40, 2, 9, &[1; 20]), message(40, 2, 9, &[2; 18]), vec![0; 2]].concat();
        assert_eq!(answer.take(&first), Ok(false));
        assert_eq!(answer.take(&message(40, 2, 8, &[3; 20])), Ok(false), "an earlier answer");
        let second = [message(40, 2, 9, &[4; 20]), done(2, 9)].concat();
        assert_eq!(answer.take(&second), Ok(true));
        let bodies = answer.messages().expect("whole").into_iter().map(|message| message.body);
        assert_eq!(bodies.collect::<Vec<_>>(), [vec![1; 20], vec![2; 18], vec![4; 20]]);
    }

    #[test]
    fn an_interrupted_dump_has_no_messages() {
        let mut answer = Answer::new(1);
        assert_eq!(answer.take(&message(40, 0x12, 1, &[1; 20])), Ok(false));
        assert_eq!(answer.take(&done(2, 1)), Ok(true));
        assert_eq!(answer.messages(), None);
        let mut answer = Answer::new(1);
        assert_eq!(answer.take(&done(0x12, 1)), Ok(true));
        assert_eq!(answer.messages(), None, "the end says it");
        let mut answer = Answer::new(1);
        assert_eq!(answer.take(&message(NLMSG_OVERRUN, 0, 1, &[])), Ok(false));
        assert_eq!(answer.take(&done(2, 1)), Ok(true));
        assert_eq!(answer.messages(), None, "messages were lost");
    }

    #[test]
    fn only_changes_want_an_acknowledgement() {
        let change = encode(&request(0x500), 3);
        assert_eq!(change[..16], [36, 0, 0, 0, 40, 0, 0x05, 0x05, 3, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(change[16..], [7; 20]);
        assert_eq!(encode(&request(0x300), 3)[6..8], [0x01, 0x03]);
        let mut answer = Answer::new(3);
        let acknowledged = [&[0; 4][..], &change[..16]].concat();
        assert_eq!(answer.take(&message(NLMSG_ERROR, 0x100, 3, &acknowledged)), Ok(true));
        assert_eq!(answer.messages(), Some(Vec::new()));
    }

    #[test]
    fn a_refusal_has_the_kernels_words() {
        let sent = encode(&request(0), 3);
        let answer = refusal(Errno::ENOENT, "Specified class not found", &sent);
        let text = "Specified class not found (ENOENT: No such file or directory)";
        assert_eq!(Answer::new(3).take(&answer), refused(text));
        let code = (-(Errno::EPERM as i32)).to_ne_bytes();
        let plain = message(NLMSG_ERROR, 0, 3, &[&code[..], &sent[..]].concat());
        let text = "EPERM: Operation not permitted; the controller needs CAP_NET_ADMIN";
        assert_eq!(Answer::new(3).take(&plain), refused(text));
        // The header of the request without the request, then the explanation.
        let mut capped = [&code[..], &sent[..16]].concat();
        put(&mut capped, NLMSGERR_ATTR_MSG, b"No\0");
        let capped = message(NLMSG_ERROR, 0x300, 3, &capped);
        let text = "No (EPERM: Operation not permitted); the controller needs CAP_NET_ADMIN";
        assert_eq!(Answer::new(3).take(&capped), refused(text));
        // The error of a dump is in its end.
        let mut end = (-(Errno::ENODEV as i32)).to_ne_bytes().to_vec();
        put(&mut end, NLMSGERR_ATTR_MSG, b"Gone\0");
        let end = message(NLMSG_DONE, 0x202, 3, &end);
        assert_eq!(Answer::new(3).take(&end), refused("Gone (ENODEV: No such device)"));
    }

    #[test]
    fn a_warning_is_no_refusal() {
        let mut body = [&[0; 4][..], &encode(&request(0), 3)[..16]].concat();
        put(&mut body, NLMSGERR_ATTR_MSG, b"quantum is big\0");
        assert_eq!(Answer::new(3).take(&message(NLMSG_ERROR, 0x300, 3, &body)), Ok(true));
    }

    #[test]
    fn damaged_answers_are_errors_and_no_panic() {
        let whole = refusal(Errno::ENOENT, "No", &encode(&request(0), 3));
        for length in 1..whole.len() {
            let taken = Answer::new(3).take(&whole[..length]);
            assert!(matches!(taken, Err(AnswerError::Invalid(_))), "{length} bytes: {taken:?}");
        }
        for at in 0..whole.len() {
            let mut other = whole.clone();
            other[at] = 0xff;
            // Any result is right, but no panic.
            drop(Answer::new(3).take(&other));
        }
        let end = message(NLMSG_DONE, 2, 3, &[]);
        assert!(matches!(Answer::new(3).take(&end), Err(AnswerError::Invalid(_))));
        let mut large = Answer::new(3);
        let datagram = message(40, 2, 3, &vec![0; ANSWER_MAX / 2]);
        assert_eq!(large.take(&datagram), Ok(false));
        assert!(matches!(large.take(&datagram), Err(AnswerError::Invalid(_))));
    }
}
