//! Tests of `penstock controller` with the examples and with wrong files.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output};

use penstock_testing::temp_dir;

fn example(name: &str) -> String {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../examples");
    root.join(name).display().to_string()
}

fn controller(args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_penstock"));
    command.arg("controller").args(args).output().unwrap()
}

fn on_examples(verb: &str, args: &[&str]) -> Output {
    let (topology, tenants) = (example("fabric.toml"), example("tenants.toml"));
    let files = [verb, "--topology", &topology, "--tenants", &tenants];
    controller(&[&files, args].concat())
}

#[test]
fn a_plan_places_refuses_with_a_reason_and_draws() {
    let out = on_examples("plan", &[]);
    let text = String::from_utf8(out.stdout).unwrap();
    // One of the example's tenants cannot be placed, so the exit status is 1.
    assert_eq!(out.status.code(), Some(1), "{text}");
    assert!(text.starts_with("TENANT"), "{text}");
    let refusal = text.lines().find(|line| line.starts_with("science (60 x 2G): ")).unwrap();
    assert!(refusal.contains("reserved") && refusal.contains("the tenant fits with"), "{refusal}");
    let picture = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("tree.svg");
    let out = on_examples("plan", &["--json", "--picture", &picture.display().to_string()]);
    let json: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
    let tenants = json["tenants"].as_array().unwrap();
    let placed = tenants.iter().filter(|t| t["placement"]["root"].is_string()).count();
    assert_eq!((tenants.len(), placed), (5, 4));
    let web = &tenants[0]["placement"]["servers"];
    assert!(web.as_array().unwrap().iter().all(|share| share["vms"].as_u64().unwrap() <= 4));
    let svg = fs::read_to_string(picture).unwrap();
    assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"));
    assert_eq!(svg.matches("<line").count(), 64 + 8 * 2 + 4 * 2 * 2 / 2);
}

#[test]
fn what_if_replays_the_same_for_a_seed_and_more_queues_serve_more() {
    // Twelve tenants have a VM on each server of a rack, so they share all links of the rack.
    let tenant = |n: u32| {
        format!("[[tenant]]\nname = \"t{n}\"\nvms = 8\nrate = \"100M\"\nmost_per_server = 1\n")
    };
    let file = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("meeting.toml");
    let text: String = (0..12).map(tenant).collect();
    fs::write(&file, text.replace("most_per", "within = [\"rack-0\"]\nmost_per")).unwrap();
    let (topology, tenants) = (example("fabric.toml"), file.display().to_string());
    let files = ["what-if", "--topology", &topology, "--tenants", &tenants];
    let args = ["--queues", "2,8,16", "--json", "--seed", "3", "--intervals", "4"];
    let run = || controller(&[files.as_slice(), &args].concat());
    let (first, second) = (run(), run());
    assert_eq!((first.status.code(), &first.stdout), (Some(0), &second.stdout));
    let rows: Vec<serde_json::Value> = serde_json::from_slice(&first.stdout).unwrap();
    let shares = rows.iter().map(|row| row["tenants_with_queue_pct"].as_f64().unwrap());
    let of_12: Vec<f64> = shares.map(|share| (share * 0.12).round()).collect();
    assert_eq!(of_12, [1.0, 7.0, 12.0], "{rows:?}");
}

#[test]
fn what_if_gives_no_reserved_queue_and_no_reserved_code_point() {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
    let tenants = folder.join("reserved-tenants.toml");
    let tenant = |n: u32| {
        format!(
            "[[tenant]]\nname = \"t{n}\"\nvms = 8\nrate = \"100M\"\nwithin = [\"rack-0\"]\n\
             most_per_server = 1\n"
        )
    };
    fs::write(&tenants, (0..12).map(tenant).collect::<String>()).unwrap();
    let with_queue = |keys: &str| {
        let fabric = fs::read_to_string(example("fabric.toml")).unwrap();
        let topology = folder.join("reserved-fabric.toml");
        fs::write(&topology, fabric.replace("queues = 8\n", &format!("queues = 8\n{keys}\n")))
            .unwrap();
        let (topology, tenants) = (topology.display().to_string(), tenants.display().to_string());
        let files = ["what-if", "--topology", &topology, "--tenants", &tenants];
        let args = ["--map", "per-egress-map", "--json", "--seed", "3", "--intervals", "4"];
        let out = controller(&[files.as_slice(), &args].concat());
        let rows: Vec<serde_json::Value> = serde_json::from_slice(&out.stdout).unwrap();
        (rows[0]["tenants_with_queue_pct"].as_f64().unwrap() * 0.12).round()
    };
    // All twelve tenants share their links, so each tenant with queues needs its own code point.
    assert_eq!((with_queue(""), with_queue("reserved_queues = 5")), (7.0, 3.0));
    let all_but_two: Vec<u8> = (1..=63).filter(|dscp| ![9, 40].contains(dscp)).collect();
    assert_eq!(with_queue(&format!("reserved_code_points = {all_but_two:?}")), 2.0);
}

#[test]
fn what_if_counts_only_what_other_traffic_leaves() {
    // The tenants share all links of a rack, and reserve all of a link except `headroom_pct`. No
    // whole weights up to 100 fit these rates exactly.
    let rates = [743, 761, 739, 757, 751, 769, 733, 727, 773, 719, 787, 740];
    let tenant = |rate: &u32| {
        format!(
            "[[tenant]]\nname = \"t{rate}\"\nvms = 8\nrate = \"{rate}M\"\nwithin = [\"rack-0\"]\n\
             most_per_server = 1\n"
        )
    };
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
    let tenants = folder.join("other-tenants.toml");
    fs::write(&tenants, rates.iter().map(tenant).collect::<String>()).unwrap();
    let found = |keys: &str| {
        let fabric = fs::read_to_string(example("fabric.toml")).unwrap();
        let topology = folder.join("other-fabric.toml");
        fs::write(&topology, fabric.replace("queues = 8\n", keys)).unwrap();
        let (topology, tenants) = (topology.display().to_string(), tenants.display().to_string());
        let files = ["what-if", "--topology", &topology, "--tenants", &tenants, "--json"];
        let out = controller(&files);
        let rows: Vec<serde_json::Value> = serde_json::from_slice(&out.stdout).unwrap();
        assert_eq!(rows[0]["placed"], rates.len());
        let gain = rows[0]["mean_gain"].as_f64().unwrap();
        (gain, rows[0]["worst_weight_error_ppm"].as_u64().unwrap())
    };
    // Both have seven queues for tenants. Only the second has queues of other traffic.
    let (alone, beside) = (found("queues = 8\n"), found("queues = 10\nreserved_queues = 3\n"));
    assert!(beside.0 < alone.0, "gain {} beside other traffic, {} alone", beside.0, alone.0);
    assert!(alone.1 == 0 && beside.1 > 0, "weight errors {} and {}", alone.1, beside.1);
}

#[test]
fn a_wrong_file_is_told_by_line_and_nothing_is_printed() {
    let wrong = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("wrong.toml");
    fs::write(&wrong, "[[tenant]]\nname = \"a\"\nvms = 9999\nrate = \"1M\"\n").unwrap();
    let (topology, wrong) = (example("fabric.toml"), wrong.display().to_string());
    let out = controller(&["plan", "--topology", &topology, "--tenants", &wrong]);
    let text = String::from_utf8(out.stderr).unwrap();
    assert_eq!((out.status.code(), out.stdout.len()), (Some(1), 0));
    assert!(text.contains("wrong.toml:3:") && text.contains("1280 slots"), "{text}");
    let record = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("usage.csv");
    fs::write(&record, "interval,tenant,used_pct\n1,web,NaN\n").unwrap();
    let out = on_examples("what-if", &["--usage", &record.display().to_string()]);
    let text = String::from_utf8(out.stderr).unwrap();
    assert!(!out.status.success() && text.contains("usage.csv:2: `NaN`"), "{text}");
}

#[test]
fn a_check_names_each_switch_that_does_not_fit_its_driver_by_line() {
    let out = controller(&["check", "--config", &example("controller.toml")]);
    let text = String::from_utf8(out.stdout).unwrap();
    assert_eq!(out.status.code(), Some(0), "{text}");
    assert!(text.ends_with("controller.toml: valid (10 servers, 3 switches)\n"), "{text}");

    let folder = temp_dir();
    let tier = "[[tier]]\nfan_out = 2\nrate = \"10G\"\n";
    let topology = format!("[fabric]\nqueues = 8\n\n[servers]\nslots = 4\n\n{tier}{tier}");
    fs::write(folder.join("fabric.toml"), topology).unwrap();
    let file = folder.join("controller.toml");
    let switch = |name: &str, keys: &str| format!("[[switch]]\nname = {name:?}\n{keys}\n");
    let sonic = "driver = \"sonic-configdb\"\naddress = \"redis://h:6379\"\n\
                 interfaces = { server-0 = [\"a\"], server-1 = [\"b\"], core-0 = [\"c\"] }";
    let gnmi = "driver = \"gnmi\"\naddress = \"h:9339\"\n\
                interfaces = { server-2 = [\"a\"], server-3 = [\"b\"], core-0 = [\"c\"] }";
    let head = "[controller]\ntopology = \"fabric.toml\"\nsocket = \"/nowhere/c.sock\"\n\n\
                [store]\npath = \"s\"\n\n[binding]\nmap = \"per-egress-map\"\n\n";
    let core = switch("core-0", "driver = \"sim\"");
    let text = [head, &core, &switch("rack-1", gnmi), &switch("rack-0", sonic)].concat();
    fs::write(&file, text).unwrap();
    let config = file.display().to_string();
    let says = format!(
        "{config}:14:1: switch \"rack-1\": gNMI has one map for all ports; write `map = \
         \"static-map\"`\n{config}:19:1: switch \"rack-0\": SONiC maps DSCPs at the ingress port; \
         write `map = \"per-port-map\"` or \"static-map\"\n\
         penstock: 2 mistakes in the configuration\n"
    );
    for args in [["check", "--config", &config], ["run", "--config", &config]] {
        let out = controller(&args);
        assert_eq!((out.status.code(), out.stdout.len()), (Some(1), 0), "{args:?}");
        assert_eq!(String::from_utf8(out.stderr).unwrap(), says, "{args:?}");
    }
    let out = controller(&["check", "--config", &config, "--json"]);
    let json: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
    assert_eq!((out.status.code(), json["ok"].as_bool()), (Some(1), Some(false)));
    assert_eq!((&json["errors"][0]["line"], &json["errors"][1]["line"]), (&14.into(), &19.into()));
    assert!(!folder.join("s").exists(), "nothing may use the store");
}
