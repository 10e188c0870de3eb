//! The plan, and a redis that answers rubbish.

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
    SwitchState { stamp: Stamp::default(), ports: [(first, state(a)), (second, state(b))].into() }
}

/// Carries out transactions one by one; `each` looks at the tables after each operation.
fn carry_out(
    settings: &Settings,
    tables: &mut Tables,
    target: &SwitchState,
    mut each: impl FnMut(&Tables),
) -> usize {
    for round in 0.. {
        let stages = plan(settings, &ports(), tables, &[], target).expect("possible");
        let Some(stage) = stages.into_iter().next() else { return round };
        assert!(round < 4, "four transactions at most: {stage:?}");
        for op in stage {
            match op {
                Op::Set(key, fields) => tables.entry(key).or_default().extend(fields),
                Op::Delete(key) => {
                    assert!(tables.remove(&key).is_some(), "only what is there is deleted");
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
        let is = tables::state(&settings, &ports(), &tables).expect("ours");
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
fn what_stays_is_in_its_queue_throughout_and_nobody_is_in_anothers() {
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
            let now = tables::state(&settings, &ports(), now).expect("ours");
            for (port, state) in &now.ports {
                for dscp in [8, 16, 24] {
                    let queue = |state: &PortState| *state.map.get(&dscp).unwrap_or(&0);
                    let (is, was, will) =
                        (queue(state), queue(&old.ports[port]), queue(&new.ports[port]));
                    assert!([was, will, 0].contains(&is), "{dscp} in {is} of {port}");
                }
            }
        });
        assert_eq!(tables::state(&settings, &ports(), &tables).expect("ours"), *new);
    }
}

#[test]
fn a_move_of_one_tenant_leaves_the_other_alone_and_itself_mapped() {
    let settings = settings(MapMode::PerPort);
    let mut tables = bare();
    carry_out(&settings, &mut tables, &target(&[(8, 1), (16, 1)], &[], &[1, 1]), |_| ());
    let to = target(&[(8, 1), (16, 2)], &[], &[1, 1]);
    carry_out(&settings, &mut tables, &to, |now| {
        let now = tables::state(&settings, &ports(), now).expect("ours");
        let map = &now.ports["Ethernet0"].map;
        assert!(map.get(&8) == Some(&1) && map.contains_key(&16), "{map:?}");
    });
}

#[test]
fn what_is_not_ours_is_refused_and_named() {
    let settings = settings(MapMode::PerPort);
    let wanted = target(&[(8, 1)], &[], &[1, 1]);
    let try_with = |key: &str, pairs: &[(&str, &str)]| {
        let mut tables = bare();
        tables.insert(key.to_owned(), hash(pairs));
        tables::state(&settings, &ports(), &tables)?;
        let entries = [key.to_owned()].map(|k| k).into_iter().filter(|k| k.starts_with("QUEUE|"));
        let entries: Vec<String> = entries.collect();
        match plan(&settings, &ports(), &tables, &entries, &wanted) {
            Err(NoPlan::Unfit(unfit)) => Err(unfit),
            other => other.map(|_| ()).map_err(|why| panic!("{why:?}")),
        }
    };
    for (key, pairs) in [
        ("PORT_QOS_MAP|Ethernet0", [("dscp_to_tc_map", "AZURE")]),
        ("PORT_QOS_MAP|Ethernet0", [("tc_to_queue_map", "[TC_TO_QUEUE_MAP|AZURE]")]),
        ("QUEUE|Ethernet0|1", [("scheduler", "scheduler.0")]),
        ("QUEUE|Ethernet0|0-4", [("scheduler", "scheduler.0")]),
    ] {
        assert!(matches!(try_with(key, &pairs), Err(Unfit::Foreign(..))), "{key}");
    }
    assert_eq!(try_with("PORT_QOS_MAP|Ethernet0", &[("pfc_enable", "3,4")]), Ok(()));
    assert_eq!(try_with("QUEUE|Ethernet0|2", &[("scheduler", "scheduler.1")]), Ok(()));
    assert_eq!(try_with("QUEUE|Ethernet0|1", &[("wred_profile", "AZURE_LOSSLESS")]), Ok(()));
}

#[test]
fn too_many_tenants_are_told_with_the_number_of_classes() {
    let many = target(&[(8, 1), (16, 2)], &[(8, 1), (16, 1), (24, 1), (32, 2)], &[]);
    let settings = settings(MapMode::PerPort);
    assert_eq!(plan(&settings, &ports(), &bare(), &[], &many), Err(NoPlan::Classes(4)));
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
    assert!(refused(Settings { queues: 4, ..Settings::default() }, "Ethernet0"), "map to 5");
    let zero = MapMode::Static([(0, 1)].into());
    assert!(refused(Settings { mode: zero, ..Settings::default() }, "Ethernet0"));
}

/// Answers every request with the same bytes, `times` over.
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
async fn nobody_there_is_not_reachable() {
    let endpoint = Endpoint::Unix("/nowhere/redis.sock".into());
    let switch = SonicSwitch::new("leaf1", &[], Settings::default(), endpoint).expect("good");
    let error = switch.read_back().await.expect_err("nobody");
    assert!(matches!(error, DriverError::Unreachable { .. }), "{error}");
}
