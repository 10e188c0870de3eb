//! Tests the transactions of the SONiC driver, and the driver with a redis that gives invalid
//! answers.

use penstock_units::BitsPerSecond;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use super::unfit::{Conflict, quoted};
use super::*;
use crate::southbound::PortState;

fn settings(mode: MapMode) -> Settings {
    Settings { mode, queues: 3, classes: 4, ..Settings::default() }
}

fn ports() -> Vec<String> {
    vec!["Ethernet0".to_owned(), "Ethernet4".to_owned()]
}

fn port_info(name: &str) -> PortInfo {
    PortInfo { name: name.to_owned(), rate: BitsPerSecond(10_000_000_000) }
}

fn hash(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs.iter().map(|(f, v)| ((*f).to_owned(), (*v).to_owned())).collect()
}

fn bare() -> Tables {
    let port = |name: &String| (format!("PORT|{name}"), hash(&[("lanes", "0")]));
    ports().iter().map(port).collect()
}

fn target(a: &[(u8, u8)], b: &[(u8, u8)], weights: &[u32]) -> SwitchState {
    let state = |map: &[(u8, u8)]| PortState {
        weights: weights.to_vec(),
        map: map.iter().copied().collect(),
    };
    let [first, second]: [String; 2] = ports().try_into().expect("two");
    let ports = [(first, state(a)), (second, state(b))].into();
    SwitchState { ports, ..SwitchState::default() }
}

fn layout(settings: &Settings, tables: &Tables) -> Result<Layout, Unfit> {
    let entries: Vec<String> = tables.keys().filter(|k| k.starts_with("QUEUE|")).cloned().collect();
    Layout::new(settings, &ports(), tables, &entries)
}

/// Returns the state of tables whose entries are valid.
fn state(settings: &Settings, tables: &Tables) -> SwitchState {
    let layout = layout(settings, tables).expect("a device with one ASIC");
    tables::state(tables, &layout, |why| format!("{why:?}")).expect("valid entries")
}

/// Applies transactions to the tables one by one. After each redis command, the caller's function
/// `each` checks the tables.
fn carry_out(
    settings: &Settings,
    tables: &mut Tables,
    target: &SwitchState,
    mut each: impl FnMut(&Tables),
) -> usize {
    for round in 0.. {
        let layout = layout(settings, tables).expect("a device with one ASIC");
        let stages = plan(settings, tables, &layout, target).expect("possible");
        let Some(stage) = stages.into_iter().next() else { return round };
        assert!(round < 4, "four transactions at most: {stage:?}");
        for op in stage {
            match op {
                Op::Set(key, fields) => tables.entry(key).or_default().extend(fields),
                Op::Delete(key) => {
                    assert!(tables.remove(&key).is_some(), "only what is there is deleted");
                }
                Op::Stamp(epoch, generation) => {
                    let stamp = hash(&[("epoch", &epoch), ("generation", &generation)]);
                    tables.insert("PENSTOCK_TABLE|stamp".to_owned(), stamp);
                }
            }
            each(tables);
        }
    }
    unreachable!("four rounds");
}

#[test]
fn a_switch_is_set_up_and_says_what_it_was_told() {
    for mode in [MapMode::PerPort, MapMode::Static([(8, 1), (16, 2)].into())] {
        let settings = settings(mode);
        let mut tables = bare();
        let wanted = target(&[(8, 1), (16, 2)], &[(8, 1), (16, 2)], &[0, 40, 60]);
        assert!(carry_out(&settings, &mut tables, &wanted, |_| ()) > 0);
        let is = state(&settings, &tables);
        assert_eq!(is, wanted);
        assert_eq!(tables["DSCP_TO_TC_MAP|PENSTOCK"].len(), 64);
        let scheduler = &tables["SCHEDULER|pen.Ethernet4.2"];
        assert_eq!(
            *scheduler,
            hash(&[("type", "DWRR"), ("weight", "60"), ("meter_type", "bytes")])
        );
        assert_eq!(tables["QUEUE|Ethernet4|2"], hash(&[("scheduler", "pen.Ethernet4.2")]));
        assert_eq!(tables["QUEUE|Ethernet4|0"], hash(&[("scheduler", "pen.rest")]));
        assert_eq!(carry_out(&settings, &mut tables, &wanted, |_| ()), 0, "twice is once");
    }
}

#[test]
fn unchanged_code_points_keep_their_queue_and_none_enters_anothers() {
    let settings = settings(MapMode::PerPort);
    let states = [
        target(&[(8, 1), (16, 2)], &[(8, 1)], &[1, 2, 3]),
        target(&[(8, 2), (24, 1)], &[(8, 1), (24, 2)], &[1, 3]),
        target(&[(16, 1), (24, 2)], &[(24, 2)], &[]),
        target(&[(16, 2), (24, 1), (8, 1)], &[(8, 2)], &[0, 0, 5]),
        target(&[], &[], &[]),
    ];
    let mut tables = bare();
    carry_out(&settings, &mut tables, &states[0], |_| ());
    let turns = (0..states.len()).flat_map(|a| (0..states.len()).map(move |b| (a, b)));
    for (from, to) in turns {
        carry_out(&settings, &mut tables, &states[from], |_| ());
        let (old, new) = (&states[from], &states[to]);
        carry_out(&settings, &mut tables, new, |now| {
            let now = state(&settings, now);
            for (port, state) in &now.ports {
                for dscp in [8, 16, 24] {
                    let queue = |state: &PortState| *state.map.get(&dscp).unwrap_or(&0);
                    let (is, was, will) =
                        (queue(state), queue(&old.ports[port]), queue(&new.ports[port]));
                    assert!([was, will, 0].contains(&is), "{dscp} in {is} of {port}");
                }
            }
        });
        assert_eq!(state(&settings, &tables), *new);
    }
}

#[test]
fn a_move_of_one_tenant_leaves_the_other_alone_and_itself_mapped() {
    let settings = settings(MapMode::PerPort);
    let mut tables = bare();
    carry_out(&settings, &mut tables, &target(&[(8, 1), (16, 1)], &[], &[1, 1]), |_| ());
    let to = target(&[(8, 1), (16, 2)], &[], &[1, 1]);
    carry_out(&settings, &mut tables, &to, |now| {
        let now = state(&settings, now);
        let map = &now.ports["Ethernet0"].map;
        assert!(map.get(&8) == Some(&1) && map.contains_key(&16), "{map:?}");
    });
}

#[test]
fn a_port_where_something_is_not_ours_is_left_out_and_the_others_are_not() {
    let settings = settings(MapMode::PerPort);
    let left_out = |key: &str, pairs: &[(&str, &str)]| {
        let mut tables = bare();
        tables.insert(key.to_owned(), hash(pairs));
        let is = state(&settings, &tables);
        assert!(is.ports.contains_key("Ethernet4"), "{key}");
        assert_eq!(is.ports.len() + is.left_out.len(), 2);
        is.left_out.into_values().next()
    };
    for (key, pairs) in [
        ("PORT_QOS_MAP|Ethernet0", [("dscp_to_tc_map", "AZURE")]),
        ("PORT_QOS_MAP|Ethernet0", [("tc_to_queue_map", "[TC_TO_QUEUE_MAP|AZURE]")]),
        ("PORT_QOS_MAP|Ethernet0", [("tc_to_dscp_map", "AZURE")]),
        ("PORT_QOS_MAP|Ethernet0", [("pfc_enable", "2,4")]),
        ("PORT_QOS_MAP|Ethernet0", [("dot1p_to_tc_map", "AZURE")]),
        ("QUEUE|Ethernet0|1", [("scheduler", "scheduler.0")]),
        ("QUEUE|Ethernet0|2", [("scheduler", "[SCHEDULER|scheduler.1]")]),
        ("QUEUE|Ethernet0|0-4", [("scheduler", "scheduler.0")]),
    ] {
        assert!(left_out(key, &pairs).is_some(), "{key} {pairs:?}");
    }
    for (key, pairs) in [
        ("PORT_QOS_MAP|Ethernet0", [("pfc_enable", "3,4")]),
        ("PORT_QOS_MAP|Ethernet0", [("pfc_enable", "")]),
        ("QUEUE|Ethernet0|3", [("scheduler", "scheduler.1")]),
        ("QUEUE|Ethernet0|1", [("wred_profile", "AZURE_LOSSLESS")]),
        ("QUEUE|Ethernet0|1", [("scheduler", "[SCHEDULER|pen.Ethernet0.1]")]),
    ] {
        assert_eq!(left_out(key, &pairs), None, "{key} {pairs:?}");
    }
    let mut tables = bare();
    tables.remove("PORT|Ethernet0");
    assert_eq!(state(&settings, &tables).left_out["Ethernet0"], "NoPort(\"Ethernet0\")");
    tables.insert("DEVICE_METADATA|localhost".to_owned(), hash(&[("switch_type", "voq")]));
    let voq = layout(&settings, &tables).map(|_| ());
    assert_eq!(voq, Err(Unfit::Platform("switch_type", "voq".to_owned())));
}

/// Returns the tables of a switch with the usual QoS configuration of SONiC: storage is lossless in
/// queues 3 and 4, routing protocols use queue 6, and all other traffic uses queues 0, 1, 2 and 5.
fn azure() -> Tables {
    let mut tables = bare();
    let class = |dscp: u8| match dscp {
        3 | 4 => dscp,
        5 => 2,
        8 => 0,
        46 => 5,
        48 => 6,
        _ => 1,
    };
    let numbers = |all: Vec<(u8, u8)>| {
        all.into_iter().map(|(from, to)| (from.to_string(), to.to_string())).collect()
    };
    let by_dscp = numbers((0..64).map(|dscp| (dscp, class(dscp))).collect());
    tables.insert("DSCP_TO_TC_MAP|AZURE".to_owned(), by_dscp);
    let by_class = numbers((0..8).map(|class| (class, class)).collect());
    tables.insert("TC_TO_QUEUE_MAP|AZURE".to_owned(), by_class);
    for port in ports() {
        let fields = [("dscp_to_tc_map", "AZURE"), ("tc_to_queue_map", "AZURE")];
        let mut fields = hash(&fields);
        fields.extend(hash(&[("pfc_enable", "3,4"), ("pfcwd_sw_enable", "3,4")]));
        tables.insert(format!("PORT_QOS_MAP|{port}"), fields);
        for queue in 0..7 {
            let key = format!("QUEUE|{port}|{queue}");
            tables.insert(key, hash(&[("scheduler", "scheduler.0")]));
        }
    }
    tables.insert("SCHEDULER|scheduler.0".to_owned(), hash(&[("type", "DWRR"), ("weight", "14")]));
    tables
}

/// Returns settings for [`azure`], in which tenants have the queues 1, 0, 2 and 5.
fn beside_azure(mode: MapMode) -> Settings {
    Settings { mode, queues: 4, tenant_queues: Some(vec![1, 0, 2, 5]), ..Settings::default() }
}

/// Returns the queue of a frame with a code point that enters and leaves through a port.
fn queue_of(tables: &Tables, port: &str, dscp: u8) -> u8 {
    let look = |(table, field): (&str, &str), from: u8| -> u8 {
        let name = tables::bound(tables, port, field).expect("bound");
        let map = tables::map(tables, table, name).expect("a map");
        *map.get(&from).expect("an entry")
    };
    look(BY_CLASS, look(BY_DSCP, dscp))
}

#[test]
fn other_traffic_keeps_its_classes_and_queues() {
    let fixed = MapMode::Static([(10, 1), (11, 2), (12, 3)].into());
    for mode in [MapMode::PerPort, fixed] {
        let settings = beside_azure(mode);
        let (before, mut tables) = (azure(), azure());
        let map = [(10, 1), (11, 2), (12, 3)];
        let wanted = target(&map, &map, &[10, 20, 30, 40]);
        let check = |now: &Tables| {
            for (port, dscp) in ports().iter().flat_map(|port| [3, 4, 48].map(|d| (port, d))) {
                assert_eq!(queue_of(now, port, dscp), queue_of(&before, port, dscp), "{dscp}");
            }
            for (dscp, queue) in [(10, 0), (11, 2), (12, 5)] {
                let is = queue_of(now, "Ethernet0", dscp);
                assert!([1, queue].contains(&is), "code point {dscp} in queue {is}");
            }
        };
        assert!(carry_out(&settings, &mut tables, &wanted, check) > 0);
        assert_eq!(state(&settings, &tables), wanted);
        assert_eq!(queue_of(&tables, "Ethernet4", 12), 5);
        // Queues 0, 2 and 5 belong to tenants, so their former traffic shares queue 1.
        assert!([5, 8, 46, 0].iter().all(|dscp| queue_of(&tables, "Ethernet0", *dscp) == 1));
        let ours = |key: &str| key.contains("PENSTOCK") || key.contains("|pen.");
        for (key, fields) in before.iter().filter(|(key, _)| !key.starts_with("PORT_QOS_MAP|")) {
            let is_tenants = ["|0", "|1", "|2", "|5"].iter().any(|end| key.ends_with(end));
            if !(key.starts_with("QUEUE|") && is_tenants) {
                assert_eq!(tables.get(key), Some(fields), "{key}");
            }
        }
        assert!(tables.keys().all(|key| ours(key) || before.contains_key(key)), "{tables:?}");
        assert_eq!(tables["PORT_QOS_MAP|Ethernet0"]["pfc_enable"], "3,4");
        assert_eq!(tables["PORT_QOS_MAP|Ethernet0"]["dscp_to_tc_map"], "PENSTOCK-AZURE");
        assert_eq!(carry_out(&settings, &mut tables, &wanted, |_| ()), 0, "twice is once");

        // A tenant that leaves has the class of other traffic again.
        let nobody = target(&[], &[], &[10, 20, 30, 40]);
        if settings.mode == MapMode::PerPort {
            carry_out(&settings, &mut tables, &nobody, |_| ());
            for dscp in 0..64 {
                let was = queue_of(&before, "Ethernet0", dscp);
                let kept = if [3, 4, 6].contains(&was) { was } else { 1 };
                assert_eq!(queue_of(&tables, "Ethernet0", dscp), kept, "{dscp}");
            }
        }
    }
}

#[test]
fn a_port_whose_other_traffic_tenants_would_disturb_is_left_out_by_itself() {
    let why = |settings: &Settings, tables: &Tables| {
        let mut is = layout(settings, tables).expect("a device with one ASIC");
        is.left_out.remove("Ethernet0")
    };
    let conflict = |conflict| Some(Unfit::Conflict("Ethernet0".to_owned(), conflict));
    let queues = |queues: [u8; 4]| {
        let tenant_queues = Some(queues.to_vec());
        Settings { tenant_queues, ..beside_azure(MapMode::PerPort) }
    };
    assert_eq!(why(&queues([1, 0, 2, 5]), &azure()), None);
    assert_eq!(why(&queues([0, 1, 2, 5]), &azure()), conflict(Conflict::Shared(1)));
    let lossless = conflict(Conflict::Lossless(3, vec![0, 1, 2, 5, 6]));
    assert_eq!(why(&queues([1, 0, 2, 3]), &azure()), lossless);
    let control = conflict(Conflict::CodePoint(48, 6));
    assert_eq!(why(&queues([1, 0, 2, 6]), &azure()), control);
    let storage = beside_azure(MapMode::Static([(10, 1), (3, 2)].into()));
    assert_eq!(why(&storage, &azure()), conflict(Conflict::CodePoint(3, 3)));
    let few = Settings { classes: 5, ..queues([1, 0, 2, 5]) };
    assert_eq!(why(&few, &azure()), conflict(Conflict::Classes(vec![0, 1, 2])));
    let foreign = Settings { tenant_queues: None, ..queues([1, 0, 2, 5]) };
    assert!(matches!(why(&foreign, &azure()), Some(Unfit::Foreign(_, "dscp_to_tc_map", _))));

    let settings = queues([1, 0, 2, 5]);
    let mut tables = azure();
    let bind = |tables: &mut Tables, port: &str, name: &str| {
        let fields = tables.get_mut(&format!("PORT_QOS_MAP|{port}")).expect("there");
        fields.insert("tc_to_queue_map".to_owned(), name.to_owned());
    };
    bind(&mut tables, "Ethernet0", "missing");
    assert!(matches!(why(&settings, &tables), Some(Unfit::NoMap(_, "tc_to_queue_map", _))));
    tables.get_mut("PORT_QOS_MAP|Ethernet0").expect("there").remove("tc_to_queue_map");
    assert!(matches!(why(&settings, &tables), Some(Unfit::NoMap(_, "tc_to_queue_map", _))));
    let is = layout(&settings, &tables).expect("a device with one ASIC");
    assert_eq!(is.ports.keys().collect::<Vec<_>>(), ["Ethernet4"], "the other port is used");

    // The second port has another map, so the first port alone is used.
    let mut other = tables["TC_TO_QUEUE_MAP|AZURE"].clone();
    other.insert("3".to_owned(), "4".to_owned());
    tables.insert("TC_TO_QUEUE_MAP|OTHER".to_owned(), other);
    bind(&mut tables, "Ethernet0", "AZURE");
    bind(&mut tables, "Ethernet4", "OTHER");
    let mut is = layout(&settings, &tables).expect("a device with one ASIC");
    let differs = Conflict::Differs("OTHER".to_owned());
    let differs = Unfit::Conflict("Ethernet4".to_owned(), differs);
    assert_eq!((is.left_out.remove("Ethernet4"), is.ports.len()), (Some(differs), 1));
}

/// By `AZURE`, frames with code point 0 have class 1. Such a frame may enter by a port of others,
/// and leave by a port of the driver.
#[test]
fn frames_of_other_ports_are_in_the_shared_queue_and_not_in_a_tenants() {
    let of_class_1 = |tables: &Tables| {
        let name = tables::bound(tables, "Ethernet0", BY_CLASS.1).expect("bound");
        tables::map(tables, BY_CLASS.0, name).expect("a map")[&1]
    };
    let beside = |port: &str| -> Tables {
        let maps = azure().into_iter().filter(|(key, _)| key.contains("_MAP|AZURE"));
        let bound = azure().remove("PORT_QOS_MAP|Ethernet4").expect("there");
        bare().into_iter().chain(maps).chain([(format!("PORT_QOS_MAP|{port}"), bound)]).collect()
    };
    let wanted = target(&[(8, 1), (16, 2)], &[(8, 1), (16, 2)], &[1, 1, 1]);
    for mode in [MapMode::PerPort, MapMode::Static([(8, 1), (16, 2)].into())] {
        // The first port is left out, and the driver does not know the others.
        for port in ["Ethernet4", "Ethernet8", "global"] {
            let (settings, mut tables) = (settings(mode.clone()), beside(port));
            carry_out(&settings, &mut tables, &wanted, |_| ());
            assert_eq!(of_class_1(&tables), 0, "{mode:?}, {port}");
            assert_eq!(queue_of(&tables, "Ethernet0", 16), 2);
        }
    }
    for mode in [MapMode::PerPort, MapMode::Static([(10, 1), (11, 2), (12, 3)].into())] {
        let (settings, mut tables) = (beside_azure(mode), azure());
        let map = [(10, 1), (11, 2), (12, 3)];
        carry_out(&settings, &mut tables, &target(&map, &map, &[1, 1, 1, 1]), |_| ());
        assert_eq!(of_class_1(&tables), 1, "the queue that tenants share");
    }
    // Classes without a tenant do not stay in the queues of the other map, which are tenants' now.
    let (settings, mut tables) = (beside_azure(MapMode::PerPort), azure());
    carry_out(&settings, &mut tables, &target(&[(10, 1)], &[(10, 1)], &[1, 1]), |_| ());
    let map = tables::map(&tables, BY_CLASS.0, "PENSTOCK_Ethernet0-AZURE").expect("a map");
    assert_eq!([0u8, 1, 5, 3, 6].map(|class| map[&class]), [1, 1, 1, 3, 6]);
    assert_eq!(queue_of(&tables, "Ethernet0", 10), 0);
}

#[test]
fn a_port_without_a_map_of_its_own_extends_the_map_of_the_switch() {
    let (settings, mut tables) = (beside_azure(MapMode::PerPort), azure());
    let port = tables.get_mut("PORT_QOS_MAP|Ethernet4").expect("there");
    port.remove("dscp_to_tc_map").expect("there");
    tables.insert("PORT_QOS_MAP|global".to_owned(), hash(&[("dscp_to_tc_map", "AZURE")]));
    let map = [(10, 1)];
    carry_out(&settings, &mut tables, &target(&map, &map, &[1, 1]), |_| ());
    assert_eq!(tables["PORT_QOS_MAP|Ethernet4"]["dscp_to_tc_map"], "PENSTOCK-AZURE");
    for (dscp, queue) in [(3, 3), (4, 4), (48, 6), (10, 0), (0, 1)] {
        assert_eq!(queue_of(&tables, "Ethernet4", dscp), queue, "{dscp}");
    }
    assert_eq!(tables["PORT_QOS_MAP|global"], hash(&[("dscp_to_tc_map", "AZURE")]));
}

#[test]
fn tenants_do_not_get_code_points_of_other_traffic() {
    let settings = beside_azure(MapMode::PerPort);
    let storage = target(&[(3, 1)], &[], &[1, 1]);
    let layout = layout(&settings, &azure()).expect("a device with one ASIC");
    let conflict = Unfit::Conflict("Ethernet0".to_owned(), Conflict::CodePoint(3, 3));
    let refused = plan(&settings, &azure(), &layout, &storage);
    assert_eq!(refused, Err(NoPlan::Unfit(conflict)));

    let ports = [port_info("Ethernet0"), port_info("Ethernet4")];
    let change = [Change::Map { port: "Ethernet0".to_owned(), dscp: 48, queue: 1 }];
    for control_queue in [false, true] {
        let settings = Settings { control_queue, mode: MapMode::PerPort, ..Settings::default() };
        let switch = SonicSwitch::new("leaf1", &ports, settings, Endpoint::Unix("/none".into()));
        let switch = switch.expect("good settings");
        let result = switch.rehearse(&mut bare(), Stamp::default(), &change);
        assert_eq!(result.is_ok(), control_queue, "{result:?}");
    }
}

#[test]
fn a_lossless_class_is_never_a_tenants() {
    let settings = Settings { classes: 8, ..settings(MapMode::PerPort) };
    let mut tables = bare();
    tables.insert("PORT_QOS_MAP|Ethernet4".to_owned(), hash(&[("pfc_enable", "3,4")]));
    let wanted = target(&[(8, 1), (16, 2), (24, 1), (32, 1)], &[(24, 2), (32, 2)], &[1, 1, 1]);
    carry_out(&settings, &mut tables, &wanted, |_| ());
    assert_eq!(state(&settings, &tables), wanted);
    let classes: BTreeSet<&str> =
        tables["DSCP_TO_TC_MAP|PENSTOCK"].values().map(String::as_str).collect();
    assert_eq!(classes, ["0", "1", "2", "5"].into(), "3 and 4 are lossless on a port");
}

#[test]
fn a_remedy_is_for_what_is_in_the_way_alone() {
    let endpoint = Endpoint::Unix("/nowhere".into());
    let switch =
        SonicSwitch::new("leaf1", &[port_info("Ethernet0")], Settings::default(), endpoint);
    let switch = switch.expect("good settings");
    let key = "PORT_QOS_MAP|Ethernet0".to_owned();
    let foreign = Unfit::Foreign(key, "dscp_to_tc_map", "AZURE".to_owned());
    let text = switch.unfit(&foreign).to_string();
    assert!(!text.contains("config qos clear"), "it deletes all buffers: {text}");
    let command = "sonic-db-cli CONFIG_DB HDEL 'PORT_QOS_MAP|Ethernet0' dscp_to_tc_map";
    assert!(text.contains(command), "{text}");
    // The key `tenant_queues` helps against other maps, but not against these.
    for field in ["tc_to_dscp_map", "dot1p_to_tc_map"] {
        let key = "PORT_QOS_MAP|Ethernet0".to_owned();
        let text = switch.unfit(&Unfit::Foreign(key, field, "AZURE".to_owned())).to_string();
        assert!(!text.contains("tenant_queues"), "{text}");
    }
    let lossless = Conflict::Lossless(3, vec![0, 1, 2]);
    let text = switch.unfit(&Unfit::Conflict("Ethernet0".to_owned(), lossless)).to_string();
    assert!(text.contains("`config interface pfc priority Ethernet0 3 off`"), "{text}");
}

/// Checks names against the patterns of SONiC's YANG models at commit 086b03bd. `sonic-dscp-tc-map`
/// and `sonic-tc-queue-map` permit `[a-zA-Z0-9]{1}([-a-zA-Z0-9_]{0,31})` for a name.
#[test]
fn entries_of_config_db_have_a_model() {
    let tables_with_model =
        ["SCHEDULER", "QUEUE", "DSCP_TO_TC_MAP", "TC_TO_QUEUE_MAP", "PORT_QOS_MAP"];
    let wanted = target(&[(8, 1), (16, 2)], &[(8, 1), (16, 2)], &[0, 40, 60]);
    for mode in [MapMode::PerPort, MapMode::Static([(8, 1), (16, 2)].into())] {
        let mut tables = bare();
        carry_out(&settings(mode), &mut tables, &wanted, |_| ());
        for key in tables.keys().filter(|key| !key.starts_with("PORT|")) {
            let (table, name) = key.split_once('|').expect("a table and a name");
            assert!(tables_with_model.contains(&table), "{key}");
            if table.ends_with("_MAP") && table != "PORT_QOS_MAP" {
                let plain = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
                assert!(name.starts_with(|c: char| c.is_ascii_alphanumeric()), "{key}");
                assert!(name.len() <= 32 && name.chars().all(plain), "{key}");
            }
        }
    }
    assert_eq!(Op::stamp(Stamp::default()).database(), STATE_DB);
}

#[test]
fn entries_of_an_older_version_are_read_and_moved() {
    let settings = settings(MapMode::PerPort);
    let wanted = target(&[(8, 1), (16, 2)], &[(8, 1)], &[1, 2, 3]);
    let mut tables = bare();
    carry_out(&settings, &mut tables, &wanted, |_| ());
    for port in ports() {
        let map = tables.remove(&format!("TC_TO_QUEUE_MAP|PENSTOCK_{port}")).expect("there");
        tables.insert(format!("TC_TO_QUEUE_MAP|PENSTOCK.{port}"), map);
        let bound = tables.get_mut(&format!("PORT_QOS_MAP|{port}")).expect("there");
        bound.insert("tc_to_queue_map".to_owned(), format!("PENSTOCK.{port}"));
    }
    let stamp = hash(&[("epoch", "3"), ("generation", "7")]);
    tables.insert("PENSTOCK|stamp".to_owned(), stamp.clone());
    let is = state(&settings, &tables);
    assert_eq!((&is.ports, is.stamp), (&wanted.ports, Stamp { epoch: 3, generation: 7 }));
    carry_out(&settings, &mut tables, &SwitchState { stamp: is.stamp, ..wanted.clone() }, |now| {
        assert_eq!(state(&settings, now).ports, wanted.ports, "mapped throughout");
    });
    assert!(!tables.keys().any(|key| key.contains("PENSTOCK.")), "{tables:?}");
    assert_eq!((tables.get("PENSTOCK|stamp"), &tables["PENSTOCK_TABLE|stamp"]), (None, &stamp));
}

#[test]
fn the_words_of_a_dry_run_are_words_for_a_shell() {
    let fields = vec![("scheduler".to_owned(), "[SCHEDULER|a]".to_owned())];
    let op = Op::Set("QUEUE|Ethernet0|1".to_owned(), fields);
    let line = "redis-cli -n 4 HSET 'QUEUE|Ethernet0|1' scheduler '[SCHEDULER|a]'";
    assert_eq!(op.to_string(), line);
    assert_eq!((&*quoted("it's"), &*quoted(""), &*quoted("8")), ("'it'\\''s'", "''", "8"));
    let stamp = Op::stamp(Stamp { epoch: 3, generation: 7 }).to_string();
    let line = "redis-cli -n 6 HSET 'PENSTOCK_TABLE|stamp' epoch 3 generation 7";
    assert_eq!(stamp, line);
}

#[test]
fn too_many_tenants_are_told_with_the_number_of_classes() {
    let many = target(&[(8, 1), (16, 2)], &[(8, 1), (16, 1), (24, 1), (32, 2)], &[]);
    let settings = settings(MapMode::PerPort);
    let layout = layout(&settings, &bare()).expect("a device with one ASIC");
    assert_eq!(plan(&settings, &bare(), &layout, &many), Err(NoPlan::Classes(4)));
}

#[test]
fn settings_and_names_that_cannot_be_are_refused() {
    let endpoint = || Endpoint::Tcp("localhost".to_owned(), 6379);
    let refused = |settings, name: &str| {
        SonicSwitch::new("leaf1", &[port_info(name)], settings, endpoint()).is_err()
    };
    assert!(!refused(Settings::default(), "Ethernet0"));
    assert!(refused(Settings::default(), "Ethernet0|3"));
    assert!(refused(Settings::default(), "*"));
    assert!(refused(Settings { queues: 9, ..Settings::default() }, "Ethernet0"));
    let eight = || Settings { queues: 8, ..Settings::default() };
    assert!(refused(eight(), "Ethernet0"), "queue 7 is SONiC's own");
    assert!(!refused(Settings { control_queue: true, ..eight() }, "Ethernet0"));
    let per_port = || Settings { mode: MapMode::PerPort, ..Settings::default() };
    assert!(!refused(per_port(), "Ethernet0"));
    assert!(!refused(per_port(), "Ethernet1/1"), "the name of its map is a hash");
    assert!(refused(Settings { classes: 6, ..per_port() }, "Ethernet0"), "a class for each queue");
    let queues = |queues: &[u8]| Settings { tenant_queues: Some(queues.to_vec()), ..per_port() };
    assert!(!refused(queues(&[1, 0, 2, 3, 4, 5, 6]), "Ethernet0"));
    assert!(refused(queues(&[1, 0, 2, 3, 4, 5]), "Ethernet0"), "one queue is missing");
    assert!(refused(queues(&[1, 0, 2, 3, 4, 5, 5]), "Ethernet0"), "one queue twice");
    assert!(refused(queues(&[1, 0, 2, 3, 4, 5, 8]), "Ethernet0"), "no queue of a port");
    assert!(refused(queues(&[1, 0, 2, 3, 4, 5, 7]), "Ethernet0"), "queue 7 is SONiC's own");
    assert!(refused(Settings { queues: 4, ..Settings::default() }, "Ethernet0"), "map to 5");
    let control = |control_queue| {
        let mode = MapMode::Static([(48, 1)].into());
        refused(Settings { mode, control_queue, ..Settings::default() }, "Ethernet0")
    };
    assert!(control(false) && !control(true), "48 is the code point of routing protocols");
    let zero = MapMode::Static([(0, 1)].into());
    assert!(refused(Settings { mode: zero, ..Settings::default() }, "Ethernet0"));
}

/// Starts a server that answers every request with `times` copies of `answer`.
async fn liar(answer: Vec<u8>, times: usize) -> Endpoint {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let port = listener.local_addr().expect("bound").port();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let answer = answer.clone();
            tokio::spawn(async move {
                let mut request = [0; 4096];
                while matches!(stream.read(&mut request).await, Ok(n) if n > 0) {
                    for _ in 0..times {
                        if stream.write_all(&answer).await.is_err() {
                            return;
                        }
                    }
                }
            });
        }
    });
    Endpoint::Tcp("127.0.0.1".to_owned(), port)
}

#[tokio::test]
async fn rubbish_is_told_with_the_switchs_name_within_bounds() {
    let big = [b"$9000000000\r\n".as_slice(), &[b'x'; 1 << 20]].concat();
    for (answer, times) in [
        (b"+OK\r\n".to_vec(), 300),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec(), 1),
        (b"*2147483647\r\n".to_vec(), 1),
        (b":7\r\n".repeat(100), 1),
        (b"*1\r\n".repeat(200), 100),
        (b"-ERR no\r\n".to_vec(), 300),
        (big, 64),
        (vec![0xff; 4096], 1),
    ] {
        let shown = String::from_utf8_lossy(&answer[..answer.len().min(20)]).into_owned();
        let endpoint = liar(answer, times).await;
        let switch =
            SonicSwitch::new("leaf1", &[port_info("Ethernet0")], Settings::default(), endpoint);
        let switch = switch.expect("good settings");
        let error = tokio::time::timeout(TIME_MAX * 2, switch.read_back()).await;
        let error = error.expect("in time").expect_err(&shown).to_string();
        println!("{shown:?}: {error}");
        assert!(error.starts_with("switch leaf1: "), "{shown:?}: {error}");
        assert!(switch.counters().await.is_err() || times == 300, "{shown:?}");
    }
}

#[tokio::test]
async fn a_missing_redis_is_unreachable() {
    let endpoint = Endpoint::Unix("/nowhere/redis.sock".into());
    let switch = SonicSwitch::new("leaf1", &[], Settings::default(), endpoint).expect("good");
    let error = switch.read_back().await.expect_err("nobody");
    assert!(matches!(error, DriverError::Unreachable { .. }), "{error}");
}
