//! Tests the driver of Linux switches against the kernel: bandwidth shares of queues, maps of code
//! points, counters, and changes under traffic.

mod net;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use net::{Net, PORT, SINK, Window, is_root, sh};
use penstock_controller::Stamp;
use penstock_controller::southbound::linux_tc::{Netns, Settings, TcSwitch};
use penstock_controller::southbound::{
    Change, DriverError, PortInfo, PortState, QueueCounters, SwitchDriver,
};
use penstock_units::BitsPerSecond;

const RATE: BitsPerSecond = BitsPerSecond(100_000_000);

fn switch(net: &Net) -> TcSwitch {
    let port = PortInfo { name: PORT.to_owned(), rate: RATE };
    let kernel = Arc::new(Netns::new(&net.ns("switch"), &net.locks()));
    TcSwitch::new("leaf1", &[port], Settings::default(), kernel).expect("good settings")
}

fn stamp(generation: u64) -> Stamp {
    Stamp { epoch: 3, generation }
}

fn map(dscp: u8, queue: u8) -> Change {
    Change::Map { port: PORT.to_owned(), dscp, queue }
}

fn weigh(weights: &[u32]) -> Change {
    Change::Weigh { port: PORT.to_owned(), weights: weights.to_vec() }
}

/// Maximum number of periods in which the test measures the port's rate. The test evaluates the
/// first window in which the senders saturate the port.
const WINDOWS_MAX: usize = 10;

/// Lock that lets tests with traffic run one at a time, because these tests share the CPU.
static TRAFFIC: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

async fn queue(switch: &TcSwitch, queue: u8) -> QueueCounters {
    let all = switch.counters().await.expect("counters");
    assert_eq!(all.len(), 8, "one for each queue");
    all.into_iter().find(|counters| counters.queue == queue).expect("there")
}

/// Returns the frames, bytes and drops of each queue that `tc` shows.
fn counters_of_tc(net: &Net) -> BTreeMap<u8, [u64; 3]> {
    let text = sh(&format!("tc -n {} -s class show dev {PORT} parent 9e50:", net.ns("switch")));
    let (mut queue, mut all) = (None, BTreeMap::new());
    for line in text.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        match (words.as_slice(), queue) {
            (["class", "htb", class, ..], _) => {
                let minor = class.strip_prefix("9e50:").expect("a class of the driver");
                queue = u8::from_str_radix(minor, 16).expect("a number").checked_sub(0x10);
            }
            (["Sent", bytes, "bytes", packets, "pkt", "(dropped", dropped, ..], Some(queue)) => {
                let number = |word: &&str| word.trim_end_matches(',').parse().expect("a number");
                all.insert(queue, [number(packets), number(bytes), number(dropped)]);
            }
            _ => {}
        }
    }
    all
}

/// Returns what `tc` and `ip` show of the switch's settings. `tc` computes bursts with another
/// precision than the driver, so the returned text does not contain bursts.
fn settings_of_tc(net: &Net) -> String {
    let ns = net.ns("switch");
    let text = sh(&format!(
        "tc -n {ns} -d qdisc show dev {PORT}; tc -n {ns} -d class show dev {PORT}
         tc -n {ns} -j filter show dev {PORT} parent 9e50:; ip -n {ns} link show dev lo"
    ));
    let words: Vec<&str> = text.split_whitespace().collect();
    let is_burst = |n: usize| n > 0 && words[n - 1].ends_with("burst");
    let kept = words.iter().enumerate().filter(|(n, _)| !is_burst(*n)).map(|(_, word)| *word);
    kept.collect::<Vec<_>>().join(" ")
}

/// Tests a port on which two tenants send, one with IPv4 and one with IPv6. Each tenant sends more
/// than its queue's share of the port.
#[tokio::test]
async fn two_tenants_share_a_full_port_by_weight_and_the_counters_add_up() {
    if !is_root() {
        return;
    }
    let _alone = TRAFFIC.lock().await;
    let net = Net::new();
    let switch = switch(&net);
    let changes = [map(8, 1), map(16, 2), weigh(&[0, 1, 3])];
    switch.apply(stamp(1), &changes).await.expect("told");
    let mut sink = net.sink(&[5001, 5002]);
    let flows = [(SINK[0], 5001, 8), (SINK[1], 5002, 16)]
        .map(|(ip, port, dscp)| net.send(ip, port, dscp, Window::Open));
    sink.take_bytes(2_000_000);

    // If other programs use the CPU, the senders may not saturate the port. The port's shares then
    // mean nothing. The total rate shows whether the port was saturated. The first window with a
    // saturated port is evaluated.
    let full = (0..WINDOWS_MAX).find_map(|_| {
        let begun = tokio::time::Instant::now();
        let got = sink.take_bytes(10_000_000);
        let elapsed = begun.elapsed().as_secs_f64();
        #[expect(clippy::cast_precision_loss, reason = "a few megabytes")]
        let [first, second] = [got[0] as f64, got[1] as f64];
        let (ratio, rate) = (second / first, (first + second) * 8.0 / elapsed / 1e6);
        println!("1:{ratio:.3} of {rate:.2} Mbit/s");
        (rate > 95.0).then_some((ratio, rate))
    });
    let (ratio, rate) = full.expect("the senders fill the port in one window");
    assert!((ratio / 3.0 - 1.0).abs() < 0.05, "1:{ratio:.3} where 1:3 is due");
    assert!(rate < 105.0, "{rate:.2} Mbit/s through 100");

    let sent = flows.map(net::Flow::stop);
    for (queue_number, sent) in [(1, sent[0]), (2, sent[1])] {
        // Remaining frames are sent within half a second.
        let mut counters = queue(&switch, queue_number).await;
        for _ in 0..500 {
            if counters.packets + counters.dropped == sent {
                break;
            }
            counters = queue(&switch, queue_number).await;
        }
        assert_eq!(counters.packets + counters.dropped, sent, "{counters:?}");
        assert!(counters.dropped > 0, "it sent more than its share: {counters:?}");
    }
    assert_eq!(queue(&switch, 0).await.packets, 0);
}

#[tokio::test]
async fn unmapped_frames_use_the_shared_queue() {
    if !is_root() {
        return;
    }
    let _alone = TRAFFIC.lock().await;
    let net = Net::new();
    let switch = switch(&net);
    switch.apply(stamp(1), &[map(8, 1), weigh(&[1, 1])]).await.expect("told");
    let mut wanted = [0; 8];
    for (n, (ip, dscp, queue)) in
        [(SINK[0], 8, 1), (SINK[0], 9, 0), (SINK[1], 8, 1), (SINK[1], 40, 0), (SINK[0], 0, 0)]
            .into_iter()
            .enumerate()
    {
        let port = 5001 + u16::try_from(n).expect("few");
        let arrived = Arc::new(AtomicU64::new(0));
        let (tell, counted) = net.sink(&[port]).count(Arc::clone(&arrived));
        let flow = net.send(ip, port, dscp, Window::Ahead(16, Arc::clone(&arrived)));
        while arrived.load(Ordering::Relaxed) < 100 {
            std::thread::yield_now();
        }
        let sent = flow.stop();
        tell.send(sent).expect("it waits");
        assert_eq!(counted.join().expect("counts"), sent, "all arrive");
        wanted[queue] += sent;
    }
    let got = switch.counters().await.expect("counters");
    let packets: Vec<u64> = got.iter().map(|counters| counters.packets).collect();
    assert_eq!(packets, wanted);
    assert!(got.iter().all(|counters| counters.waiting == Some(0)), "{got:?}");
    let numbers = |counters: &QueueCounters| {
        (counters.queue, [counters.packets, counters.bytes, counters.dropped])
    };
    assert_eq!(got.iter().map(numbers).collect::<BTreeMap<_, _>>(), counters_of_tc(&net));
}

#[tokio::test]
async fn a_hundred_changes_under_traffic_lose_nothing_and_leave_nobody_unmapped() {
    if !is_root() {
        return;
    }
    let _alone = TRAFFIC.lock().await;
    let net = Net::new();
    let switch = switch(&net);
    switch.apply(stamp(1), &[map(8, 1), weigh(&[1, 2, 3])]).await.expect("told");
    let arrived = Arc::new(AtomicU64::new(0));
    let (tell, counted) = net.sink(&[5001]).count(Arc::clone(&arrived));
    let flow = net.send(SINK[0], 5001, 8, Window::Ahead(64, Arc::clone(&arrived)));
    for n in 0..100u8 {
        let at = arrived.load(Ordering::Relaxed);
        let weight = u32::from(n % 7) + 1;
        let changes = [map(8, 2 - n % 2), map(16, n % 8), weigh(&[1, weight, 8 - weight])];
        switch.apply(stamp(2 + u64::from(n)), &changes).await.expect("told under traffic");
        while arrived.load(Ordering::Relaxed) == at && flow.sent() == at {
            std::thread::yield_now();
        }
    }
    let sent = flow.stop();
    tell.send(sent).expect("it waits");
    assert_eq!(counted.join().expect("counts"), sent, "nothing is lost");
    let [zero, one, two] =
        [queue(&switch, 0).await, queue(&switch, 1).await, queue(&switch, 2).await];
    println!("{sent} frames: {} in queue 1, {} in queue 2", one.packets, two.packets);
    assert_eq!((zero.packets, one.packets + two.packets), (0, sent));
    assert!(one.packets > 0 && two.packets > 0);
}

#[tokio::test]
async fn the_next_controller_reads_changes_back_and_they_are_idempotent() {
    if !is_root() {
        return;
    }
    let net = Net::new();
    let fresh = switch(&net).read_back().await.expect("a switch that nobody told anything");
    assert_eq!((fresh.stamp, &fresh.ports[PORT]), (Stamp::default(), &PortState::default()));
    let changes = [map(8, 1), map(63, 7), weigh(&[5, 1, 0, 100])];
    let words = switch(&net).words(&changes).await.expect("a dry run");
    assert!(words.iter().any(|word| word.starts_with("tc filter replace dev v0")), "{words:?}");
    assert_eq!(switch(&net).read_back().await.expect("readable"), fresh, "nothing was done");

    switch(&net).apply(stamp(9), &changes).await.expect("told");
    let is = switch(&net).read_back().await.expect("readable");
    assert_eq!(is.stamp, stamp(9));
    let wanted = PortState { weights: vec![5, 1, 0, 100], map: [(8, 1), (63, 7)].into() };
    assert_eq!(is.ports[PORT], wanted);
    let words = switch(&net).words(&changes).await.expect("a dry run");
    assert_eq!(words.len(), 1, "only the stamp: {words:?}");
    switch(&net).apply(stamp(9), &changes).await.expect("the same again");

    let late = switch(&net).apply(stamp(8), &[weigh(&[1])]).await;
    let fenced = DriverError::Fenced { switch: "leaf1".into(), has: stamp(9), told: stamp(8) };
    assert_eq!(late, Err(fenced));
    assert_eq!(switch(&net).read_back().await, Ok(is));
}

/// Makes the same changes on two switches: on one with the driver, on the other with the command
/// lines of the dry run.
#[tokio::test]
async fn the_command_lines_of_a_dry_run_have_the_effect_of_the_driver() {
    if !is_root() {
        return;
    }
    let (driven, typed) = (Net::new(), Net::new());
    let steps = [
        vec![map(8, 1), map(16, 2), weigh(&[0, 1, 3])],
        vec![map(8, 2), map(63, 7), weigh(&[1, 5, 0, 100])],
    ];
    for (generation, changes) in (1..).zip(steps) {
        for line in switch(&typed).words(&changes).await.expect("a dry run") {
            let line = line.replace("EPOCH.GENERATION", &stamp(generation).to_string());
            sh(&format!("ip netns exec {} {line}", typed.ns("switch")));
        }
        switch(&driven).apply(stamp(generation), &changes).await.expect("told");
        let settings = settings_of_tc(&driven);
        assert!(settings.contains("class htb 9e50:12 parent 9e50:1 leaf 9e72: "), "{settings}");
        assert_eq!(settings, settings_of_tc(&typed));
        let read = switch(&typed).read_back().await;
        assert_eq!(read, switch(&driven).read_back().await);
        assert_eq!(read.expect("readable").stamp, stamp(generation));
    }
}

#[tokio::test]
async fn a_port_that_is_down_is_set_up() {
    if !is_root() {
        return;
    }
    let net = Net::new();
    let (ns, switch) = (net.ns("switch"), switch(&net));
    // A port that was never up has no qdisc.
    sh(&format!(
        "ip -n {ns} link del dev v0; ip -n {ns} link add v0 type veth peer name v1; \
         ip -n {ns} link show dev v0 | grep -q 'qdisc noop '"
    ));
    switch.apply(stamp(1), &[map(8, 1), weigh(&[1, 2])]).await.expect("told");
    sh(&format!("ip -n {ns} link set dev v1 up; ip -n {ns} link set dev v0 up"));
    let is = switch.read_back().await.expect("readable");
    let wanted = PortState { weights: vec![1, 2], map: [(8, 1)].into() };
    assert_eq!((is.stamp, &is.ports[PORT]), (stamp(1), &wanted));
    let words = switch.words(&[weigh(&[1, 2])]).await.expect("a dry run");
    assert_eq!(words.len(), 1, "only the stamp: {words:?}");
}

#[tokio::test]
async fn a_refused_change_names_the_command_and_the_kernels_reason() {
    if !is_root() {
        return;
    }
    let net = Net::new();
    let (ns, switch) = (net.ns("switch"), switch(&net));
    switch.apply(stamp(1), &[weigh(&[1, 1])]).await.expect("told");
    // Another qdisc takes the handle of queue 1's qdisc.
    sh(&format!(
        "tc -n {ns} qdisc del dev v0 parent 9e71:2 handle 9e61:
         tc -n {ns} qdisc replace dev v0 parent 9e50:12 handle 9e61: tbf rate 1mbit burst 9kb \
             limit 9kb"
    ));
    let error = switch.apply(stamp(2), &[map(8, 1)]).await.expect_err("refused").to_string();
    let frames = Settings::default().frames_at(RATE);
    let command =
        format!("tc qdisc replace dev v0 parent 9e71:2 handle 9e61: pfifo limit {frames}");
    let (_, problem) = error.split_once(&command).expect("the command");
    let problem = problem.strip_prefix(": ").expect("the reason follows");
    let (reason, number) = problem.rsplit_once(" (E").expect("a reason and an error number");
    let said = sh(&format!("ip netns exec {ns} {command} 2>&1 || true"));
    assert!(said.contains(&format!("Error: {}", reason.trim_end_matches('.'))), "{error}: {said}");
    assert!(number.ends_with(')'), "{error}");
    assert_eq!(switch.read_back().await.expect("readable").stamp, stamp(1), "not the new stamp");
}

/// Limit of the time for a change of all ports of a switch, which is also the limit for a change of
/// ten tenants on four switches.
const CHANGE_MAX: Duration = Duration::from_millis(500);

#[tokio::test]
async fn a_change_of_64_ports_takes_less_than_half_a_second() {
    if !is_root() {
        return;
    }
    let _alone = TRAFFIC.lock().await;
    let net = Net::new();
    let ns = net.ns("switch");
    let names: Vec<String> = (0..64).map(|n| format!("p{n}")).collect();
    let pair = |two: &[String]| format!("link add {} type veth peer name {}\n", two[0], two[1]);
    let pairs: String = names.chunks(2).map(pair).collect();
    sh(&format!("ip -n {ns} -batch - <<'END'\n{pairs}END\n"));
    let port = |name: &String| PortInfo { name: name.clone(), rate: RATE };
    let ports: Vec<PortInfo> = names.iter().map(port).collect();
    let kernel = Arc::new(Netns::new(&ns, &net.locks()));
    let switch = TcSwitch::new("leaf1", &ports, Settings::default(), kernel).expect("good");
    let changes = |weight: u32| -> Vec<Change> {
        let change = |port: &String| {
            let (first, second) = (port.clone(), port.clone());
            let weights = vec![1, weight];
            [
                Change::Weigh { port: first, weights },
                Change::Map { port: second, dscp: 8, queue: u8::from(weight.is_multiple_of(2)) },
            ]
        };
        names.iter().flat_map(change).collect()
    };
    switch.apply(stamp(1), &changes(1)).await.expect("set up");
    let mut least = Duration::MAX;
    for weight in 2..5 {
        let begun = tokio::time::Instant::now();
        switch.apply(stamp(u64::from(weight)), &changes(weight)).await.expect("told");
        least = least.min(begun.elapsed());
    }
    println!("a change of the weights and maps of 64 ports: {least:?}");
    assert!(least < CHANGE_MAX, "{least:?}");
    let is = switch.read_back().await.expect("readable");
    assert!(is.ports.values().all(|port| port.weights == [1, 4]), "{is:?}");
}

#[tokio::test]
async fn changes_by_others_are_seen_and_other_configurations_left_alone() {
    if !is_root() {
        return;
    }
    let net = Net::new();
    let (ns, switch) = (net.ns("switch"), switch(&net));
    switch.apply(stamp(1), &[map(8, 1), weigh(&[1, 1])]).await.expect("told");
    let class = "class change dev v0 parent 9e50:1 classid 9e50:11";
    sh(&format!("tc -n {ns} {class} htb rate 1mbit ceil 100mbit quantum 1600"));
    let is = switch.read_back().await.expect("readable");
    assert_eq!(is.ports[PORT].weights, [1], "a class at another rate has no weight of ours");
    switch.apply(stamp(2), &[weigh(&[1, 1])]).await.expect("told anew");
    assert_eq!(switch.read_back().await.expect("readable").ports[PORT].weights, [1, 1]);

    sh(&format!("tc -n {ns} filter add dev v0 parent 9e50: protocol ip pref 9 u32 match u32 0 0"));
    let is = switch.read_back().await.expect("readable");
    let why = &is.left_out[PORT];
    assert!(why.contains("filter u32 of preference 9"), "{why}");
    sh(&format!("tc -n {ns} filter del dev v0 parent 9e50: pref 9"));

    sh(&format!(
        "tc -n {ns} qdisc del dev v0 root; tc -n {ns} qdisc add dev v0 root handle 7: htb"
    ));
    let error = switch.apply(stamp(3), &[map(8, 2)]).await.expect_err("somebody else's");
    assert!(error.to_string().contains("root qdisc htb 7:"), "{error}");
    switch.apply(stamp(3), &[]).await.expect("the other ports of a switch can change");
    assert!(sh(&format!("tc -n {ns} qdisc show dev v0")).starts_with("qdisc htb 7: root"));

    sh(&format!("tc -n {ns} qdisc del dev v0 root; ip -n {ns} link set dev lo alias 'by hand'"));
    let error = switch.apply(stamp(4), &[]).await.expect_err("somebody else's").to_string();
    assert!(error.contains("by hand"), "{error}");
    drop(net);
    let error = switch.read_back().await.expect_err("no namespace any more");
    assert!(matches!(error, DriverError::Unreachable { .. }), "{error}");
}

#[tokio::test]
async fn a_filter_of_acknowledgements_that_is_missing_returns() {
    if !is_root() {
        return;
    }
    let net = Net::new();
    let (ns, switch) = (net.ns("switch"), switch(&net));
    switch.apply(stamp(1), &[weigh(&[1, 1])]).await.expect("told");
    let has_filter =
        || sh(&format!("tc -n {ns} filter show dev {PORT} parent 9e71:")).contains("bpf");
    assert!(has_filter());
    sh(&format!("tc -n {ns} filter del dev {PORT} parent 9e71: pref 1"));
    assert!(!has_filter());
    switch.apply(stamp(2), &[]).await.expect("told");
    assert!(has_filter());
}

#[tokio::test]
async fn a_namespace_that_was_made_again_is_another_run() {
    if !is_root() {
        return;
    }
    let net = Net::new();
    let switch = switch(&net);
    let run = switch.run_id().await.expect("readable");
    assert!(run.is_some());
    switch.apply(stamp(1), &[weigh(&[1, 3])]).await.expect("told");
    assert_eq!(switch.run_id().await.expect("readable"), run, "a change is no restart");
    let ns = net.ns("switch");
    sh(&format!("ip netns del {ns} && ip netns add {ns}"));
    assert_ne!(switch.run_id().await.expect("readable"), run);
}
