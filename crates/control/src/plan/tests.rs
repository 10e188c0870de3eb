use super::*;
use crate::config;

const MODEL: &str = r#"
[about]
version = 1
host = "lab"
date = "2026-11-21T14:00:00Z"
cpu = "c, Linux 6.1.0-9"
made_by = "test"
tsc_hz = 2000000000

[batch]
per_batch = { median = 320, min = 320, max = 320 }
frames = 32
source = "measured"

[numa_remote]
factor = { median = 1.4, min = 1.4, max = 1.4 }
source = "published"

[[vms]]
count = 1
factor = { median = 1, min = 1, max = 1 }
source = "measured"

[[cores]]
count = 1
factor = { median = 1, min = 1, max = 1 }
source = "measured"

[[action]]
name = "vlan-push"
per_frame = { median = 10, min = 10, max = 10 }
per_byte = 0
source = "measured"
"#;

/// A cost model in which a frame of 64 bytes costs 100 cycles and a frame of 1,064 bytes costs 200
/// cycles. In this cost model, frames of many flows cost 50 cycles more, and the number of rules
/// does not matter.
pub(crate) fn model_toml() -> String {
    let mut text = MODEL.to_owned();
    for (flows, classification) in [("single", 30), ("multiple", 80)] {
        for (size, ingress) in [(64, 50), (1064, 150)] {
            let stage = |n: i32| format!("{{ median = {n}, min = {n}, max = {n} }}");
            text += &format!(
                "\n[[cell]]\nsize = {size}\nflows = \"{flows}\"\nrules = 1\nring = \"split\"\n\
                 ingress = {}\nclassification = {}\negress = {}\nsource = \"measured\"\n",
                stage(ingress),
                stage(classification),
                stage(20)
            );
        }
    }
    text
}

/// Rate of the counter in [`model_toml`].
pub(crate) const MODEL_HZ: u64 = 2_000_000_000;

pub(crate) fn model() -> Arc<CostModel> {
    Arc::new(config::parse_model(&model_toml(), "model.toml").unwrap())
}

pub(super) fn plan_of(text: &str, model: Option<&Arc<CostModel>>, workers: usize) -> CapacityPlan {
    plan_on(&Origin::default(), text, model, workers)
}

/// Works like [`plan_of`] on a machine with known properties.
pub(super) fn plan_on(
    origin: &Origin,
    text: &str,
    model: Option<&Arc<CostModel>>,
    workers: usize,
) -> CapacityPlan {
    let head = "[host]\nname = \"h\"\n";
    let config = config::parse(&format!("{head}{text}"), "").unwrap();
    let ids = IdTable::default().next(&config);
    let tsc = TscRate::from_hz(MODEL_HZ);
    Planner { config: &config, model, ids: &ids, workers, origin, tsc }.plan()
}

/// Returns a checked configuration of a host with one worker.
pub(crate) fn checked(text: &str, model: Option<&Arc<CostModel>>) -> Checked {
    let config = config::parse(&format!("[host]\nname = \"h\"\n{text}"), "").unwrap();
    let plan = plan_of(text, model, 1);
    let (tsc, origin) = (TscRate::from_hz(MODEL_HZ), Origin::default());
    Checked { config, model: model.cloned(), plan, tsc, origin }
}

pub(crate) fn port(name: &str, more: &str) -> String {
    format!(
        "[[port]]\nname = \"{name}\"\nvhost-user.socket = \"/run/{name}.sock\"\n\
         tenant = \"red\"\n{more}\n"
    )
}

pub(crate) const RED: &str = "[[tenant]]\nname = \"red\"\n";

fn texts(plan: &CapacityPlan) -> Vec<&str> {
    plan.warnings.iter().map(|warning| warning.text.as_str()).collect()
}

/// In this test, the port `vm` purchased cycles and is in latency class 3. Returns the capacity
/// plan for the port `vm` beside the port `other`, under the schedule `schedule`.
fn beside_a_buyer(schedule: &str, other: &str) -> CapacityPlan {
    let worker = format!("[worker]\nschedule = \"{schedule}\"\n");
    let class = if schedule == "hbs" { "priority = 3" } else { "" };
    let bought = format!("cycles = \"1G\"\ningress_policy = \"cycles-minmax\"\n{class}");
    plan_of(&(worker + RED + &port("vm", &bought) + &port("other", other)), None, 1)
}

#[test]
fn a_port_that_no_policy_limits_is_told_where_it_takes_from_those_who_bought() {
    let plan = beside_a_buyer("hbs", "priority = 1");
    assert_eq!(
        texts(&plan),
        ["port other: no policy limits its cycles, and its class 1 is served before class 3 \
             of port vm, which purchased cycles; set its `ingress_policy` and \
             `cycles`, or `priority` = 3"]
    );
    let about = |name: &'static str| plan.warnings_of(name).count();
    assert_eq!([about("other"), about("vm"), about("up")], [1, 1, 0]);
    let policed = "priority = 2\ningress_policy = \"pps\"\npolice = { pps = \"1k\" }";
    assert!(texts(&beside_a_buyer("hbs", policed))[0].contains("its class 2 is served before"));

    let told = "port other: without a policy, these ports may take cycles that other ports";
    for (schedule, other) in [("hbs", "priority = 3"), ("round-robin", "")] {
        let plan = beside_a_buyer(schedule, other);
        let [text] = texts(&plan)[..] else { panic!("{schedule}: {:?}", plan.warnings) };
        assert!(text.starts_with(told), "{schedule}: {text}");
    }
    // There is no warning if the other port has a later class, purchased cycles itself, or runs on
    // another worker. There is also no warning if no port purchased cycles.
    let bought = "cycles = \"1M\"\ningress_policy = \"cycles-strict\"\npriority = 1";
    for other in ["priority = 4", bought] {
        assert_eq!(texts(&beside_a_buyer("hbs", other)), [""; 0], "{other}");
    }
    let free = port("a", "") + &port("b", "priority = 1");
    let plan = plan_of(&("[worker]\nschedule = \"hbs\"\n".to_owned() + RED + &free), None, 1);
    assert_eq!(texts(&plan), [""; 0]);
    let bought = "cycles = \"1G\"\ningress_policy = \"cycles-minmax\"\nworker = 0";
    let apart = "[worker]\ncores = [1, 2]\n".to_owned() + RED + &port("vm", bought);
    let apart = apart + &port("other", "worker = 1");
    assert_eq!(texts(&plan_of(&apart, None, 2)), [""; 0]);
    assert_eq!(texts(&plan_of(&apart.replace("worker = 1", "worker = 0"), None, 2)).len(), 1);
}

#[test]
fn a_class_that_round_robin_ignores_is_told() {
    let plan = plan_of(&(RED.to_owned() + &port("a", "priority = 1") + &port("b", "")), None, 1);
    assert_eq!(
        texts(&plan),
        ["port a: `priority` 1 has no effect, as `schedule` in [worker] is round-robin; set \
          schedule = \"hbs\", or remove `priority`"]
    );
}

#[test]
fn cycles_that_are_too_few_or_missing_are_told() {
    let told = |more: &str| {
        let plan = plan_of(&(RED.to_owned() + &port("a", more)), None, 1);
        assert!(plan.refusals.is_empty());
        plan.warnings.iter().map(|warning| warning.text.clone()).collect::<Vec<_>>().join("|")
    };
    assert_eq!(
        told("ingress_policy = \"cycles-strict\"\ncycles = 400"),
        "port a: `cycles` 400 per second is too little: a full batch costs about 3200, so the \
         next batch waits 8.0 s; write `cycles` with a suffix, as in \"200M\""
    );
    assert_eq!(told("ingress_policy = \"cycles-strict\"\ncycles = \"1M\""), "");
    assert_eq!(
        told("ingress_policy = \"cycles-minmax\""),
        "port a: policy cycles-minmax without `cycles`: the port gets only its `cycle_weight` of \
         spare cycles; write `cycles`"
    );
    assert!(told("ingress_policy = \"cycles-strict\"").contains("the port can send nothing"));
}

#[test]
fn accounts_and_directories_that_this_machine_lacks_are_told() {
    let dir = penstock_testing::temp_dir();
    let file = dir.join("host.toml");
    let ports = port(
        "a",
        "vhost-user.socket_owner = \"nobody-of-that-name\"\nvhost-user.socket_group = \"0\"",
    )
    .replace("/run/a.sock", "/nonexistent/a.sock")
        + &port("b", "vhost-user.socket_owner = \"root\"").replace("/run/b.sock", "/tmp/b.sock")
        + &port("c", "vhost-user.mode = \"client\"").replace("/run/c.sock", "/nonexistent/c.sock");
    std::fs::write(&file, format!("[host]\nname = \"h\"\n{RED}{ports}")).unwrap();
    let checked = Checked::load(&file);
    assert_eq!(
        texts(&checked.unwrap().plan),
        [
            "port a: `socket_owner` \"nobody-of-that-name\" is not in /etc/passwd of this machine; \
             write another name, or the numeric ID",
            "port a: directory /nonexistent of its socket does not exist; run `mkdir -p \
             /nonexistent`"
        ]
    );
}

#[test]
fn a_contract_becomes_cycles_and_a_share_of_the_core() {
    let ports = port("a", "contract = { rate = \"1Mpps\", size = 1064 }")
        + &port("b", "contract = { rate = \"1Mpps\", size = 64, flows = \"multiple\" }");
    let plan = plan_of(&(RED.to_owned() + &ports), Some(&model()), 1);
    let of = |name: &str| plan.port(name).unwrap();
    assert_eq!((of("a").cycles, of("a").basis), (CyclesPerSecond(200_000_000), Basis::Contract));
    assert_eq!(of("b").cycles, CyclesPerSecond(150_000_000));
    assert!((of("a").share - 0.1).abs() < 1e-9);
    assert!(plan.refusals.is_empty(), "{:?}", plan.refusals);
    // The host keeps 1 % for its own work.
    assert_eq!(plan.admission.room, [CyclesPerSecond(1_630_000_000)]);
}

#[test]
fn cycles_win_over_a_contract_and_a_difference_is_told() {
    let ports = port("a", "cycles = \"300M\"\ncontract = { rate = \"1Mpps\", size = 1064 }")
        + &port("b", "cycles = \"205M\"\ncontract = { rate = \"1Mpps\", size = 1064 }");
    let plan = plan_of(&(RED.to_owned() + &ports), Some(&model()), 1);
    let a = plan.port("a").unwrap();
    assert_eq!((a.cycles, a.basis), (CyclesPerSecond(300_000_000), Basis::Cycles));
    assert!(a.terms().unwrap().contract.is_none(), "nothing is learned of it");
    let told: Vec<_> = texts(&plan).into_iter().filter(|w| w.contains("is used")).collect();
    assert_eq!(
        told,
        ["port a: `cycles` 300M differs by +50 % from the cost model's 200M for the port's \
          contract; `cycles` is used"]
    );
}

/// In this test, two ports without purchased cycles share a core of 2 GHz with a port that
/// purchased cycles. The guaranteed minimums (floors) of the two ports are together 2 % of the
/// core. If fewer cycles of the core are unsold, the guaranteed minimums are lower, but together at
/// least 0.1 % of the core.
#[test]
fn who_bought_nothing_is_sure_of_a_floor_where_classes_come_first() {
    let floors = |schedule: &str, sold: &str| -> Vec<u64> {
        let worker = format!("[worker]\nschedule = \"{schedule}\"\n");
        let ports = port("a", &format!("cycles = \"{sold}\"\ningress_policy = \"cycles-minmax\""))
            + &port("b", "")
            + &port("c", "ingress_policy = \"pps\"\npolice = { pps = \"1k\" }");
        let plan = plan_of(&(worker + RED + &ports), None, 1);
        plan.ports.iter().map(|port| port.floor.0).collect()
    };
    assert_eq!(floors("hbs", "1G"), [0, 20_000_000, 20_000_000]);
    assert_eq!(floors("hbs", "1990M"), [0, 5_000_000, 5_000_000]);
    assert_eq!(floors("hbs", "2G"), [0, 1_000_000, 1_000_000]);
    assert_eq!(floors("round-robin", "1G"), [0; 3], "there everybody has a turn");
}

#[test]
fn what_does_not_fit_is_refused_with_what_would() {
    let ports = port("a", "contract = { rate = \"8Mpps\", size = 1064 }\nworker = 0")
        + &port("b", "cycles = \"700M\"\nworker = 0");
    let text = RED.to_owned() + &ports;
    let plan = plan_of(&text, Some(&model()), 1);
    let [refusal] = plan.refusals.as_slice() else { panic!("{:?}", plan.refusals) };
    assert_eq!(
        refusal.to_string(),
        "worker 0: 2.3G cycles per second are sold and 1.98G are available: 0.32G too much; sell \
         port a 6.4Mpps instead of 8Mpps, or reduce each port's purchase to 86.08 %"
    );
    let plan = plan_of(&text, Some(&model()), 2);
    assert!(plan.refusals[0].remedy.starts_with("place port b on worker 1, or "), "{plan:?}");
}

#[test]
fn more_bandwidth_than_the_link_has_is_refused() {
    let uplink = "[[port]]\nname = \"up\"\npacket.interface = \"eth0\"\nlink = \"10G\"\n";
    let ports = port("a", "contract = { rate = \"8G\", size = 1024 }")
        + &port("b", "contract = { rate = \"4G\", size = 1024 }");
    let plan = plan_of(&(RED.to_owned() + uplink + &ports), Some(&model()), 1);
    let [refusal] = plan.refusals.as_slice() else { panic!("{:?}", plan.refusals) };
    assert_eq!(
        refusal.to_string(),
        "uplink: 12.234G bit/s are sold with Ethernet's overhead, and the link carries 10G: 2.234G \
         too much; sell port a 5.8G instead of 8G, or reduce each port's purchase to 81.73 %"
    );
    // The link of a tenant's port carries none of the uplink's frames.
    let tenants = port("c", "link = \"40G\"\negress = \"wfq\"");
    let plan = plan_of(&(RED.to_owned() + uplink + &ports + &tenants), Some(&model()), 1);
    assert_eq!((plan.refusals.len(), plan.link), (1, Some(BitsPerSecond(10_000_000_000))));
    // 10 Gbit/s of the shortest frames take 13.1 Gbit/s of a link.
    let short = port("a", "cycles = 1000\ncontract = { rate = \"10G\", size = 64 }");
    let plan = plan_of(&(RED.to_owned() + uplink + &short), Some(&model()), 1);
    assert!(plan.refusals[0].problem.starts_with("13.125G bit/s are sold"), "{:?}", plan.refusals);
}

#[test]
fn a_tag_for_the_uplink_and_the_rules_that_apply_are_counted() {
    let text = "[[tenant]]\nname = \"red\"\nvlans = [7]\n\
        [[port]]\nname = \"up\"\npacket.interface = \"eth0\"\ntrunk = [7]\n\
        [[rule]]\nname = \"r\"\ntenant = \"red\"\nactions = [\"drop\"]\n\
        [[rule]]\nname = \"s\"\nport = \"up\"\nactions = [\"normal\"]\n"
        .to_owned()
        + &port("a", "vlan = 7\ncontract = { rate = \"1Mpps\", size = 64 }");
    let plan = plan_of(&text, Some(&model()), 1);
    let a = plan.port("a").unwrap();
    let work = [Work::ToPacket, Work::VlanPush].map(Part::from);
    assert_eq!((a.profile.rules, a.profile.actions.as_slice()), (1, &work[..]));
    assert_eq!(a.cycles, CyclesPerSecond(110_000_000));
}

#[test]
fn a_port_that_bought_nothing_claims_nothing_and_needs_no_model() {
    let text = RED.to_owned() + &port("a", "") + &port("b", "contract = { rate = \"1G\" }");
    let plan = plan_of(&text, None, 1);
    assert!(plan.refusals.is_empty() && plan.ports.iter().all(|p| p.terms().is_none()));
    assert_eq!(plan.ports[1].profile.sizes.to_string(), "imix");
}

#[test]
fn another_machines_model_is_told() {
    let mut parts = model().parts().clone();
    parts.about.tsc = TscRate::from_hz(2_500_000_000);
    let other = Arc::new(CostModel::new(parts).unwrap());
    let plan = plan_of(RED, Some(&other), 1);
    assert!(
        plan.warnings[0].text.contains("2.50 GHz, this host has 2.00 GHz"),
        "{:?}",
        plan.warnings
    );
}
