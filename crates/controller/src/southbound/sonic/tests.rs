//! Tests the transactions of the SONiC driver, and the driver with a redis that gives invalid
//! answers.

use penstock_units::BitsPerSecond;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

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

/// Returns the state of tables that contain no other configuration.
fn state(settings: &Settings, tables: &Tables) -> SwitchState {
    let entries: Vec<String> = tables.keys().filter(|k| k.starts_with("QUEUE|")).cloned().collect();
    let state = tables::state(settings, &ports(), tables, &entries, |why| format!("{why:?}"));
    state.expect("ours")
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
        let stages = plan(settings, &ports(), tables, target).expect("possible");
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
        assert_eq!(tables[&tables::dscp_map()].len(), 64);
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
        ("PORT_QOS_MAP|Ethernet0", [("pfc_enable", "3,4")]),
        ("QUEUE|Ethernet0|1", [("scheduler", "scheduler.0")]),
        ("QUEUE|Ethernet0|2", [("scheduler", "[SCHEDULER|scheduler.1]")]),
        ("QUEUE|Ethernet0|0-4", [("scheduler", "scheduler.0")]),
    ] {
        assert!(left_out(key, &pairs).is_some(), "{key} {pairs:?}");
    }
    for (key, pairs) in [
        ("PORT_QOS_MAP|Ethernet0", [("pfc_enable", "4,5")]),
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
    let voq = tables::state(&settings, &ports(), &tables, &[], |_| String::new());
    assert_eq!(voq, Err(Unfit::Voq));
}

#[test]
fn a_remedy_is_for_what_is_in_the_way_alone() {
    let endpoint = Endpoint::Unix("/nowhere".into());
    let switch =
        SonicSwitch::new("leaf1", &[port_info("Ethernet0")], Settings::default(), endpoint);
    let switch = switch.expect("good settings");
    let key = "PORT_QOS_MAP|Ethernet0".to_owned();
    let text = switch.unfit(Unfit::Foreign(key, "dscp_to_tc_map", "AZURE".to_owned())).to_string();
    assert!(!text.contains("config qos clear"), "it deletes all buffers: {text}");
    let command = "sonic-db-cli CONFIG_DB HDEL 'PORT_QOS_MAP|Ethernet0' dscp_to_tc_map";
    assert!(text.contains(command), "{text}");
    let text = switch.unfit(Unfit::Lossless("Ethernet0".to_owned(), 3)).to_string();
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
    assert_eq!(plan(&settings, &ports(), &bare(), &many), Err(NoPlan::Classes(4)));
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
    assert!(refused(per_port(), "Ethernet1/1"), "no name of a map");
    assert!(refused(per_port(), "a-port-of-twenty-four-ch"), "too long for the name of a map");
    assert!(refused(Settings { queues: 4, ..Settings::default() }, "Ethernet0"), "map to 5");
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
