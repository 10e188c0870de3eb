//! Tests the Linux driver with a kernel that returns prepared answers, including invalid answers.

use std::collections::VecDeque;
use std::sync::Mutex;

use penstock_units::BitsPerSecond;

use super::class::Class;
use super::layout::{ROOT, TOP, class_of, inner_of, leaf_of, others_class_of};
use super::netlink::{LinkHeader, TCA_KIND, TcHeader, put};
use super::*;

/// Answers to the requests of one exchange.
type Exchange = Vec<Vec<Message>>;

/// Kernel that returns prepared answers in order, one for each exchange.
#[derive(Debug, Default)]
struct Script {
    answers: Mutex<VecDeque<Result<Exchange, KernelError>>>,
    /// Requests of each exchange.
    asked: Mutex<Vec<Vec<Request>>>,
}

#[derive(Debug)]
struct Free;

impl Hold for Free {}

#[async_trait]
impl Kernel for Script {
    async fn ask(&self, requests: Vec<Request>) -> Result<Exchange, KernelError> {
        self.asked.lock().expect("one thread").push(requests);
        let next = self.answers.lock().expect("one thread").pop_front();
        next.unwrap_or_else(|| Err(KernelError::Unreachable("asked too often".to_owned())))
    }

    async fn hold(&self) -> Result<Box<dyn Hold>, KernelError> {
        Ok(Box::new(Free))
    }
}

/// Attributes of an interface's name and alias.
const NAME: u16 = 3;
const ALIAS: u16 = 20;

fn link(index: i32, name: &str, alias: &str) -> Message {
    let mut body = LinkHeader { index }.bytes();
    put(&mut body, NAME, name.as_bytes());
    put(&mut body, ALIAS, alias.as_bytes());
    Message { body }
}

fn object(index: i32, kind: &str, handle: u32, parent: u32) -> Message {
    let mut body = TcHeader { index, handle, parent, info: 0 }.bytes();
    put(&mut body, TCA_KIND, kind.as_bytes());
    Message { body }
}

fn lo(alias: &str) -> Vec<Message> {
    vec![link(1, "lo", alias), link(2, "e0", ""), link(3, "e1", "")]
}

fn ours(index: i32) -> Message {
    object(index, "htb", ROOT, u32::MAX)
}

fn port(name: &str) -> PortInfo {
    PortInfo { name: name.to_owned(), rate: BitsPerSecond(1_000_000_000) }
}

fn switch(
    ports: &[PortInfo],
    answers: Vec<Result<Exchange, KernelError>>,
) -> (TcSwitch, Arc<Script>) {
    let script = Script { answers: Mutex::new(answers.into()), ..Script::default() };
    let script = Arc::new(script);
    let kernel: Arc<dyn Kernel> = script.clone();
    let made = TcSwitch::new("leaf1", ports, Settings::default(), kernel);
    (made.expect("good settings"), script)
}

async fn read_error(answers: Vec<Exchange>) -> DriverError {
    let answers = answers.into_iter().map(Ok).collect();
    let (switch, _) = switch(&[port("e0")], answers);
    switch.read_back().await.expect_err("an invalid answer")
}

#[tokio::test]
async fn an_interface_that_was_made_again_is_another_run() {
    let again = vec![link(1, "lo", "penstock 3.1"), link(7, "e0", "")];
    let answers = [lo(""), lo("penstock 3.1"), again].map(|links| Ok(vec![links]));
    let (switch, _) = switch(&[port("e0")], answers.into());
    let mut runs = Vec::new();
    for _ in 0..3 {
        runs.push(switch.run_id().await.expect("answered").expect("known"));
    }
    assert_eq!(runs[0], runs[1], "a stamp is no restart");
    assert_ne!(runs[1], runs[2]);
}

#[tokio::test]
async fn invalid_answers_are_errors_with_the_switchs_name() {
    let short = || Message { body: vec![0; 3] };
    let well = || lo("penstock 7.3");
    let bare_class = || object(2, "htb", class_of(1), TOP);
    let cases: [(Vec<Exchange>, &str); 8] = [
        (vec![vec![]], "netlink"),
        (vec![vec![vec![], vec![]]], "ip link show"),
        (vec![vec![vec![short()], vec![]]], "ip link show"),
        (vec![vec![well(), vec![short()]]], "tc qdisc show"),
        (vec![vec![well(), vec![ours(2)]], vec![vec![]]], "netlink"),
        (vec![vec![well(), vec![ours(2)]], vec![vec![short()], vec![]]], "tc filter show dev e0"),
        (
            vec![vec![well(), vec![ours(2)]], vec![vec![], vec![bare_class()]]],
            "tc -s class show dev e0",
        ),
        (vec![vec![lo("somebody's own words"), vec![]]], "somebody's own words"),
    ];
    for (answers, what) in cases {
        let error = read_error(answers).await.to_string();
        assert!(error.starts_with("switch leaf1: ") && error.contains(what), "{what}: {error}");
    }
}

/// Returns why the driver does not use the port `e0` of a switch that also has the port `e1`.
async fn left_out(answers: Vec<Exchange>) -> String {
    let answers = answers.into_iter().map(Ok).collect();
    let (switch, _) = switch(&[port("e0"), port("e1")], answers);
    let mut is = switch.read_back().await.expect("the other port is readable");
    assert_eq!(is.ports.keys().collect::<Vec<_>>(), ["e1"]);
    is.left_out.remove("e0").expect("left out")
}

#[tokio::test]
async fn a_port_that_the_driver_cannot_use_is_left_out_by_itself() {
    let without = vec![link(1, "lo", ""), link(3, "e1", "")];
    let why = left_out(vec![vec![without, vec![]]]).await;
    assert!(why.contains("port e0") && why.contains("no such interface"), "{why}");
    let others = object(2, "fq", 0x8001_0000, u32::MAX);
    let why = left_out(vec![vec![lo(""), vec![others]]]).await;
    assert!(why.contains("root qdisc fq 8001:") && why.contains("tc qdisc del"), "{why}");
    let filter = object(2, "u32", 0, ROOT);
    let why = left_out(vec![vec![lo(""), vec![ours(2)]], vec![vec![filter], vec![]]]).await;
    assert!(why.contains("filter u32") && why.contains("tc filter del"), "{why}");
}

#[tokio::test]
async fn the_ports_beside_a_port_of_others_are_changed() {
    let see = || Ok(vec![lo(""), vec![object(2, "fq", 0x8001_0000, u32::MAX)]]);
    let (switch, kernel) = switch(&[port("e0"), port("e1")], vec![see(), see()]);
    let weigh = |port: &str| Change::Weigh { port: port.to_owned(), weights: vec![1, 1] };
    let error = switch.words(&[weigh("e0")]).await.expect_err("left out").to_string();
    assert!(error.contains("root qdisc fq 8001:"), "{error}");
    let stamp = Stamp { epoch: 8, generation: 1 };
    switch.apply(stamp, &[weigh("e1")]).await.expect_err("the script has no third answer");
    let asked = kernel.asked.lock().expect("one thread");
    let steps = asked.last().expect("steps");
    assert!(steps[0].words.starts_with("tc qdisc replace dev e1 root"), "{}", steps[0].words);
    assert!(steps.iter().all(|step| !step.words.contains("dev e0")), "{steps:?}");
}

#[tokio::test]
async fn a_port_that_is_down_has_no_qdisc_and_is_read() {
    let (switch, _) = switch(&[port("e0")], vec![Ok(vec![lo("penstock 7.3"), vec![]])]);
    let read = switch.read_back().await.expect("readable");
    assert_eq!(read.stamp, Stamp { epoch: 7, generation: 3 });
    assert_eq!(read.ports["e0"], PortState::default());
}

#[tokio::test]
async fn a_switch_is_read_in_two_exchanges() {
    let answers =
        vec![Ok(vec![lo(""), vec![ours(3), ours(2)]]), Ok(vec![vec![], vec![], vec![], vec![]])];
    let (switch, kernel) = switch(&[port("e1"), port("e0")], answers);
    switch.read_back().await.expect("readable");
    let asked = kernel.asked.lock().expect("one thread");
    let words = asked.iter().map(|requests| requests.iter().map(|request| request.words.as_str()));
    let words: Vec<Vec<&str>> = words.map(Iterator::collect).collect();
    let queues = [
        "tc filter show dev e1 parent 9e50:",
        "tc -s class show dev e1 parent 9e50:",
        "tc filter show dev e0 parent 9e50:",
        "tc -s class show dev e0 parent 9e50:",
    ];
    assert_eq!(words, [vec!["ip link show", "tc qdisc show"], queues.to_vec()]);
    let (header, _) = TcHeader::read(&asked[1][0].body).expect("whole");
    assert_eq!(header.index, 3, "the number of e1");
}

#[tokio::test]
async fn a_queue_without_the_filter_of_acknowledgements_gets_it() {
    let fifos = || {
        let inner = object(2, "htb", inner_of(1), class_of(1));
        vec![ours(2), inner, object(2, "pfifo", leaf_of(1), others_class_of(1))]
    };
    let see = |filters: Vec<Message>| {
        [Ok(vec![lo(""), fifos()]), Ok(vec![Vec::new(), Vec::new(), filters])]
    };
    let interface = Interface { name: "e0", index: 2 };
    let filter = Message { body: requests::find_acks(interface, 1).body };
    let answers = [see(Vec::new()), see(vec![filter])].into_iter().flatten().collect();
    let (switch, kernel) = switch(&[port("e0")], answers);
    let mut sets = Vec::new();
    for _ in 0..2 {
        let words = switch.words(&[]).await.expect("a dry run");
        let begin = "tc filter replace dev e0 parent 9e71: ";
        sets.push(words.iter().any(|word| word.starts_with(begin)));
    }
    assert_eq!(sets, [true, false]);
    let asked = kernel.asked.lock().expect("one thread");
    assert_eq!(asked[1][2].words, "tc filter show dev e0 parent 9e71:");
}

#[tokio::test]
async fn the_stamp_is_the_last_request_of_a_change() {
    let answers = vec![Ok(vec![lo("penstock 7.3"), vec![]])];
    let (switch, kernel) = switch(&[port("e0")], answers);
    let stamp = Stamp { epoch: 8, generation: 1 };
    let weights = vec![1, 1];
    let change = Change::Weigh { port: "e0".to_owned(), weights };
    switch.apply(stamp, &[change]).await.expect_err("the script has no second answer");
    let asked = kernel.asked.lock().expect("one thread");
    let steps = asked.last().expect("steps");
    assert!(steps[0].words.starts_with("tc qdisc replace dev e0 root"), "{}", steps[0].words);
    let last = steps.last().expect("the stamp");
    assert_eq!(last.words, "ip link set dev lo alias \"penstock 8.1\"");
    assert_eq!(LinkHeader::read(&last.body).expect("whole").0.index, 1, "the number of lo");
}

#[tokio::test]
async fn a_late_change_is_refused_before_any_request() {
    let told = Stamp { epoch: 7, generation: 2 };
    let (switch, kernel) = switch(&[port("e0")], vec![Ok(vec![lo("penstock 7.3"), vec![]])]);
    let error = switch.apply(told, &[]).await.expect_err("late");
    assert!(matches!(error, DriverError::Fenced { .. }), "{error}");
    assert_eq!(kernel.asked.lock().expect("one thread").len(), 1, "it only read");
}

#[tokio::test]
async fn a_refusal_names_the_command() {
    let class = Class { rate: 1_000_000_000, ceil: 1_000_000_000, ..Class::default() };
    let words = format!("tc class replace dev e0 {}", class.words(ROOT, TOP));
    let refused = KernelError::Refused { words, problem: "Invalid handle (EINVAL)".to_owned() };
    let answers = vec![Ok(vec![lo("penstock 7.3"), vec![]]), Err(refused)];
    let (switch, _) = switch(&[port("e0")], answers);
    let error = switch.apply(Stamp { epoch: 8, generation: 1 }, &[]).await.expect_err("refused");
    let text = error.to_string();
    let wanted = "refused tc class replace dev e0 parent 9e50: classid 9e50:1 ";
    assert!(text.contains(wanted) && text.ends_with(": Invalid handle (EINVAL)"), "{text}");
}

#[test]
fn ports_and_settings_that_the_kernel_cannot_have_are_refused() {
    let made = |ports: &[PortInfo], settings| {
        TcSwitch::new("leaf1", ports, settings, Arc::new(Script::default()))
    };
    let good = Settings::default();
    assert!(made(&[port("e0"), port("e1")], good).is_ok());
    for name in ["", "e0 root", "e0\nqdisc del dev e1 root", "a-name-too-long-for-it", "\"", "é"] {
        assert!(made(&[port(name)], good).is_err(), "{name:?}");
    }
    assert!(made(&[port("e0"), port("e0")], good).is_err(), "two ports with one interface");
    for settings in [
        Settings { queues: 17, ..good },
        Settings { quantum: 0, ..good },
        Settings { quantum: (16 << 20) + 1, ..good },
    ] {
        assert!(made(&[port("e0")], settings).is_err(), "{settings:?}");
    }
    let many = made(&[port("e0")], Settings { queues: 17, ..good }).unwrap_err().to_string();
    assert_eq!(
        many,
        "switch leaf1: 17 queues is not supported: 2 to 16 queues; lower `queues`, or raise \
         `reserved_queues`, in the fabric's file"
    );
    let still = PortInfo { name: "e0".into(), rate: BitsPerSecond(0) };
    assert!(made(&[still], good).is_err());
}
