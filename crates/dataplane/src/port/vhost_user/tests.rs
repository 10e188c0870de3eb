//! Tests of a vhost-user port without rings. The tests check how the session's thread stops, and
//! which system calls the thread may make.

use std::io::{ErrorKind, Read as _, Write as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::Duration;

use penstock_units::Nanos;

use super::*;
use crate::wake::Cause as SleepCause;
use crate::worker::{WorkerConfig, Workers, spawn};

/// The message `GET_FEATURES`, which the port answers with 20 bytes.
const QUESTION: [u32; 3] = [1, 1, 0];
/// Time limit of a step of a test. The time limit is longer than any step of a test takes, so that
/// only a hanging test fails.
const PATIENCE: Duration = Duration::from_secs(20);

struct Rig {
    port: VhostUser,
    queues: Vec<Box<dyn PortQueue>>,
}

impl Rig {
    fn new(name: &str, mode: SocketMode) -> Self {
        let file = format!("penstock-{name}-{}", std::process::id());
        let path = std::env::temp_dir().join(file);
        let config = VhostUserConfig { mode, ..VhostUserConfig::new(name, path) };
        let worker =
            spawn(WorkerConfig { idle_backoff: Nanos::from_millis(1), ..Default::default() });
        let (port, queues) =
            VhostUser::start(config, PortId(0), Workers::from(worker.unwrap())).unwrap();
        Self { port, queues }
    }

    fn connect(&self) -> UnixStream {
        let stream = UnixStream::connect(&self.port.config.path).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream
    }

    /// Stops the port as a worker does after a long sleep in the port's memory.
    fn stop_by_worker(&mut self) {
        assert!(self.queues[0].stop(SleepCause::Memory, Nanos::from_millis(919)));
    }

    /// Waits until the port's status satisfies `is_right`.
    fn until(&self, is_right: impl Fn(&AttachStatus) -> bool) -> AttachStatus {
        let mut tries = (0..PATIENCE.as_millis()).map(|_| {
            let _ = poll(&mut [], PollTimeout::from(1_u8));
            self.port.status()
        });
        tries.find(|status| is_right(status)).unwrap()
    }

    /// Whether the session's thread waits in one of the system calls `calls`.
    fn is_in(&self, calls: &[libc::c_long]) -> bool {
        let text = told_of(&format!("vhost-{}", self.port.config.name), "syscall");
        let call = text.unwrap_or_default().split(' ').next().and_then(|call| call.parse().ok());
        call.is_some_and(|call| calls.contains(&call))
    }

    fn is_told_why(&self) {
        self.until(|status| {
            let why = status.error.as_deref().unwrap_or_default();
            why.contains("made the worker wait for 919 ms")
        });
    }
}

/// Content of the `/proc` file `file` of the thread with the name `thread`.
fn told_of(thread: &str, file: &str) -> Option<String> {
    let mut tasks = std::fs::read_dir("/proc/self/task").unwrap().map(|task| task.unwrap().path());
    let is_right = |task: &PathBuf| {
        std::fs::read_to_string(task.join("comm")).is_ok_and(|name| name.trim_end() == thread)
    };
    std::fs::read_to_string(tasks.find(is_right)?.join(file)).ok()
}

fn bytes(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}

fn read_to_end(stream: &mut UnixStream) {
    let end = std::io::copy(stream, &mut std::io::sink()).map_err(|error| error.kind());
    // The connection is reset if the port had not read everything.
    let is_over = matches!(end, Ok(_) | Err(ErrorKind::ConnectionReset));
    assert!(is_over, "the port does not hang up: {end:?}");
}

#[test]
fn a_session_in_half_a_message_ends_when_the_worker_stops_the_port() {
    // The test sends a part of a message's header, before and after features are acknowledged. The
    // session does not wait for the bytes after a header. If these bytes are missing, the session
    // ends by itself.
    let acknowledge = bytes(&[2, 1, 8, 1 << 30, 1]);
    let question = bytes(&QUESTION);
    let header = &question[..6];
    for half in [header, &[&acknowledge[..], header].concat()] {
        let mut rig = Rig::new("half", SocketMode::Server);
        rig.port.serve().unwrap();
        let mut driver = rig.connect();
        driver.write_all(&question).unwrap();
        driver.read_exact(&mut [0; 20]).unwrap();
        driver.write_all(half).unwrap();
        rig.until(|_| rig.is_in(&[libc::SYS_recvfrom, libc::SYS_recvmsg]));
        rig.stop_by_worker();
        read_to_end(&mut driver);
        rig.is_told_why();
    }
}

#[test]
fn a_session_that_cannot_answer_ends_when_the_worker_stops_the_port() {
    let mut rig = Rig::new("full", SocketMode::Server);
    rig.port.serve().unwrap();
    let driver = rig.connect();
    driver.set_nonblocking(true).unwrap();
    let question = bytes(&QUESTION);
    // Requests are sent until the session waits for room, because the driver reads no answer.
    rig.until(|_| {
        while (&driver).write(&question).is_ok() {}
        rig.is_in(&[libc::SYS_sendmsg, libc::SYS_sendto, libc::SYS_write])
    });
    rig.stop_by_worker();
    let mut driver = driver;
    driver.set_nonblocking(false).unwrap();
    read_to_end(&mut driver);
    rig.is_told_why();
}

#[test]
fn a_session_in_half_a_message_is_given_up_without_a_wait() {
    let mut rig = Rig::new("kept-half", SocketMode::Server);
    rig.port.serve().unwrap();
    let mut driver = rig.connect();
    driver.write_all(&bytes(&QUESTION)).unwrap();
    driver.read_exact(&mut [0; 20]).unwrap();
    driver.write_all(&bytes(&QUESTION)[..6]).unwrap();
    rig.until(|_| rig.is_in(&[libc::SYS_recvfrom, libc::SYS_recvmsg]));
    rig.port.begin_to_keep();
    assert!(!rig.port.has_ended(50), "the session waits for the rest of the message");
    rig.port.give_up();
    read_to_end(&mut driver);
    assert!(rig.port.keep().is_none());
}

#[test]
fn a_session_between_two_messages_ends_without_a_hang_up() {
    let mut rig = Rig::new("kept-whole", SocketMode::Server);
    rig.port.serve().unwrap();
    let mut driver = rig.connect();
    driver.write_all(&bytes(&QUESTION)).unwrap();
    driver.read_exact(&mut [0; 20]).unwrap();
    // The driver acknowledges a feature (VERSION_1), so that another process can continue.
    driver.write_all(&bytes(&[2, 1, 8, 0, 1])).unwrap();
    driver.write_all(&bytes(&QUESTION)).unwrap();
    driver.read_exact(&mut [0; 20]).unwrap();
    rig.port.begin_to_keep();
    let ended = (0..PATIENCE.as_millis()).any(|_| rig.port.has_ended(1));
    assert!(ended, "the session does not end");
    // Too late to give the session up.
    rig.port.give_up();
    let kept = rig.port.keep().unwrap();
    driver.set_nonblocking(true).unwrap();
    let read = driver.read(&mut [0; 1]).unwrap_err();
    assert_eq!(read.kind(), ErrorKind::WouldBlock, "the connection is open");
    drop(kept);
    assert_eq!(driver.read(&mut [0; 1]).unwrap(), 0);
}

#[test]
fn a_driver_that_hangs_up_while_the_worker_sleeps_stays_out_all_the_same() {
    let mut rig = Rig::new("gone", SocketMode::Server);
    rig.port.serve().unwrap();
    let mut driver = rig.connect();
    driver.write_all(&bytes(&QUESTION)).unwrap();
    driver.read_exact(&mut [0; 20]).unwrap();
    drop(driver);
    rig.until(|status| status.state == AttachState::Waiting);
    rig.stop_by_worker();
    let mut driver = rig.connect();
    read_to_end(&mut driver);
    rig.is_told_why();
    let mut early = rig.connect();
    early.set_nonblocking(true).unwrap();
    early.write_all(&bytes(&QUESTION)).unwrap();
    rig.port.stop();
    early.set_nonblocking(false).unwrap();
    let answered = early.read(&mut [0; 20]);
    assert!(!matches!(answered, Ok(1..)), "nobody is served within the pause: {answered:?}");
}

#[test]
fn a_session_that_connects_has_no_capability_and_gets_its_connection() {
    let mut rig = Rig::new("client", SocketMode::Client);
    let path = rig.port.config.path.clone();
    let listener = UnixListener::bind(&path).unwrap();
    rig.port.serve().unwrap();
    let (mut driver, _) = listener.accept().unwrap();
    driver.set_read_timeout(Some(PATIENCE)).unwrap();
    driver.write_all(&bytes(&QUESTION)).unwrap();
    driver.read_exact(&mut [0; 20]).unwrap();
    let status = told_of("vhost-client", "status").unwrap();
    for set in ["CapPrm:", "CapEff:"] {
        let line = status.lines().find_map(|line| line.strip_prefix(set)).unwrap();
        assert_eq!(u64::from_str_radix(line.trim(), 16), Ok(0), "{set}");
    }
    drop(driver);
    let (mut again, _) = listener.accept().unwrap();
    again.set_read_timeout(Some(PATIENCE)).unwrap();
    again.write_all(&bytes(&QUESTION)).unwrap();
    again.read_exact(&mut [0; 20]).unwrap();
    rig.port.stop();
    for thread in ["vhost-client", "dials-client"] {
        assert_eq!(told_of(thread, "comm"), None, "it has ended");
    }
    std::fs::remove_file(&path).unwrap();
}
