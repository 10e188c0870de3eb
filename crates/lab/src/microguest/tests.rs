//! Tests that run small guests under KVM. On a machine without KVM, the tests of small guests are
//! skipped.

use penstock_dataplane::tsc::{self, CycleCounter as _, Tsc};
use penstock_testing::wait_until as until;

use super::*;

struct Guest {
    board: Arc<Board>,
    thread: JoinHandle<anyhow::Result<()>>,
}

impl Guest {
    /// Starts a micro-guest. Returns `None` if there is no KVM.
    fn start() -> Option<Self> {
        if let Err(error) = is_available() {
            assert!(error.to_string().contains("/dev/kvm"), "{error:#}");
            penstock_testing::skip(format_args!("{error:#}"));
            return None;
        }
        let board = Arc::new(Board::new().unwrap());
        let thread = start(&board, None).unwrap();
        Some(Self { board, thread })
    }

    fn end(self) {
        self.board.stop();
        self.thread.join().unwrap().unwrap();
    }
}

#[test]
fn it_counts_and_answers_events_in_order_of_time() {
    let Some(guest) = Guest::start() else { return };
    until("the first round", || guest.board.rounds() > 0);
    let mut last = 0;
    for number in 1..=20 {
        let rounds = guest.board.rounds();
        let told = Tsc.now().0;
        guest.board.tell(number);
        until("an answer", || guest.board.answered().0 == number);
        let (_, at) = guest.board.answered();
        let after = Tsc.now().0;
        // The counters of host and guest agree within a few microseconds.
        let slack = 100_000;
        assert!(told < at + slack && at < after + slack, "{told} {at} {after}");
        assert!(at > last && guest.board.rounds() >= rounds);
        last = at;
    }
    until("another round", || guest.board.rounds() > 1_000_000);
    guest.end();
}

#[test]
fn it_sends_a_stream_in_time_and_sleeps_when_it_has_nothing_to_do() {
    let Some(guest) = Guest::start() else { return };
    until("the first round", || guest.board.rounds() > 0);
    let hz = tsc::calibrate().hz();
    let begin = Tsc.now().0 + hz / 100;
    let due: Vec<u64> = (0..50).map(|n| begin + n * hz / 200).collect();
    let stream = Stream { due: due.clone(), work: 1_000, period: hz / 20, pause_ns: 0 };
    guest.board.stream(&stream).unwrap();
    until("half of it", || guest.board.sent().len() >= 25);
    // While the guest sends, it computes only a thousand rounds in 50 ms. Without a stream, it
    // computes millions of rounds in 5 ms.
    let rounds = guest.board.rounds();
    let sent = guest.board.sent().len();
    until("the rest", || guest.board.sent().len() == 50 || guest.board.sent().len() > sent + 5);
    assert!(guest.board.rounds() - rounds < 100_000, "{}", guest.board.rounds() - rounds);
    until("all of it", || guest.board.sent().len() == 50);
    for (due, sent) in due.iter().zip(guest.board.sent()) {
        assert!(sent + hz / 10_000 >= *due, "sent before it was due");
    }
    guest.end();
}

#[test]
fn a_stream_that_is_too_long_and_memory_that_is_none_are_refused() {
    let board = Board::new().unwrap();
    let long = Stream { due: vec![0; board::PACKETS_MAX + 1], ..Stream::default() };
    assert!(board.stream(&long).unwrap_err().to_string().contains("120000"));
    let error = Board::open(std::path::Path::new("/dev/null")).unwrap_err().to_string();
    assert!(error.contains("not a micro-guest's memory"), "{error}");
    assert_eq!(Board::open(board.path()).unwrap().rounds(), 0);
}
