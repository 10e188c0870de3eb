//! Tests the settings of switches in a controller's file, and the errors for mistakes in these
//! settings.

use std::fs;
use std::path::PathBuf;

use penstock_controller::fabric_state::Fabric;
use penstock_controller::files::{
    ControllerFile, DriverFile, FabricFile, PenstockFile, StoreFile, load_controller,
};
use penstock_testing::{TempDir, temp_dir};

const TOPOLOGY: &str = "[fabric]\nname = \"dc\"\n\n[servers]\nslots = 4\n\n\
    [[tier]]\nfan_out = 2\nrate = \"10G\"\n";
const HEAD: &str = "[controller]\ntopology = \"fabric.toml\"\n\n[store]\npath = \"s\"\n\n\
    [[switch]]\nname = \"rack-0\"\ninterfaces = { server-0 = [\"a\"], server-1 = [\"b\"] }\n";

/// Directory with a datacenter's file.
struct Folder(TempDir);

impl Folder {
    fn new() -> Self {
        let folder = temp_dir();
        fs::write(folder.join("fabric.toml"), TOPOLOGY).unwrap();
        Self(folder)
    }

    /// Parses a controller's configuration file with the `[[switch]]` table in `switch`. An error
    /// contains the mistakes of the file without line numbers.
    fn read(&self, switch: &str) -> Result<ControllerFile, Vec<String>> {
        let file = self.0.join("controller.toml");
        fs::write(&file, format!("{HEAD}{switch}")).unwrap();
        let text = |error: &dyn ToString| {
            let text = error.to_string();
            text.split_once(": ").unwrap().1.to_owned()
        };
        load_controller(&file).map_err(|errors| errors.0.iter().map(|e| text(e)).collect())
    }

    fn mistakes(&self, switch: &str) -> Vec<String> {
        self.read(switch).map(|_| ()).unwrap_err()
    }
}

#[test]
fn a_gnmi_switch_is_read_with_its_files_as_seen_from_the_folder() {
    let folder = Folder::new();
    let switch = "driver = \"gnmi\"\naddress = \"10.0.0.9:9339\"\n\
        tls = { ca = \"ca.pem\", cert = \"/etc/c.pem\", key = \"c.key\", server_name = \"leaf\" }\n\
        user = \"admin\"\npassword_file = \"word\"\n";
    let file = folder.read(switch).unwrap();
    let (_, switch) = file.switches.first_key_value().unwrap();
    let DriverFile::Gnmi { address, tls: Some(tls), login: Some(login), set_ms } = &switch.driver
    else {
        panic!("{:?}", switch.driver)
    };
    assert_eq!((&**address, *set_ms), ("10.0.0.9:9339", 10_000));
    assert_eq!(
        (&tls.ca, tls.key.as_ref()),
        (&folder.0.join("ca.pem"), Some(&folder.0.join("c.key")))
    );
    assert_eq!(tls.cert, Some(PathBuf::from("/etc/c.pem")));
    assert_eq!((&*login.user, &login.password), ("admin", &folder.0.join("word")));
}

#[test]
fn what_is_wrong_with_a_gnmi_switch_is_told() {
    let folder = Folder::new();
    let of = |keys: &str| folder.mistakes(&format!("driver = \"gnmi\"\n{keys}"));
    let at = "address = \"10.0.0.9:9339\"\n";
    let told = |what: &str| vec![format!("switch \"rack-0\": {what}")];
    let missing =
        "`address` is missing; write host and port of the gNMI target, as in \"10.0.0.9:9339\"";
    assert_eq!(of(""), told(missing));
    for wrong in ["10.0.0.9", ":9339", "https://10.0.0.9:9339", "h:0"] {
        let what = "has no host or no port; write host and port, as in \"10.0.0.9:9339\"";
        assert_eq!(of(&format!("address = {wrong:?}\n")), told(&format!("{wrong:?} {what}")));
    }
    assert_eq!(of(&format!("{at}set_ms = 999\n")), told("`set_ms`: 999 ms; write 1000 to 60000"));
    assert_eq!(
        of(&format!("{at}tls = {{ ca = \"a\", key = \"k\" }}\n")),
        told("`cert` and `key` belong together; write both, or neither")
    );
    assert_eq!(
        of(&format!("{at}user = \"a\"\npassword_file = \"p\"\n")),
        told("the password would cross the network unencrypted; add `tls`")
    );
    assert_eq!(
        of(&format!("{at}tls = {{ ca = \"a\" }}\nuser = \"a\"\n")),
        told("`user` without `password_file`; add `password_file`")
    );
    assert_eq!(
        of(&format!("{at}tls = {{ ca = \"a\" }}\npassword_file = \"a\"\n")),
        told("`password_file` without `user`; add `user`")
    );
}

#[test]
fn a_sonic_switch_is_read_with_what_its_image_is_like() {
    let folder = Folder::new();
    let at = "driver = \"sonic-configdb\"\naddress = \"redis://10.0.0.9:6379\"\n";
    let sonic = |more: &str| {
        let file = folder.read(&format!("{at}{more}")).unwrap();
        let (_, switch) = file.switches.first_key_value().unwrap();
        let DriverFile::Sonic(sonic) = &switch.driver else { panic!("{:?}", switch.driver) };
        sonic.clone()
    };
    let plain = sonic("");
    assert_eq!((plain.classes, plain.password), (None, None));
    assert_eq!((plain.tenant_queues, plain.settle_ms), (None, None));
    assert!(!plain.bracketed && !plain.control_queue);
    let all = sonic(
        "classes = 4\nreferences = \"bracketed\"\ncontrol_queue = true\npassword_file = \"word\"\n\
         tenant_queues = [1, 0]\nsettle_ms = 200\n",
    );
    assert_eq!((all.tenant_queues, all.settle_ms), (Some(vec![1, 0]), Some(200)));
    assert_eq!((all.classes, all.password), (Some(4), Some(folder.0.join("word"))));
    assert!(all.bracketed && all.control_queue);
    assert_eq!(
        folder.mistakes(&format!("{at}classes = 17\n")),
        ["switch \"rack-0\": `classes`: 17 traffic classes; write 2 to 16"]
    );
    assert_eq!(
        folder.mistakes(&format!("{at}tenant_queues = [1, 1]\nsettle_ms = 1001\n")),
        [
            "switch \"rack-0\": `tenant_queues`: [1, 1]; write 2 to 8 different queues from 0 to 7",
            "switch \"rack-0\": `settle_ms`: 1001 ms; write 0 to 1000",
        ]
    );
    assert_eq!(
        folder.mistakes("driver = \"sim\"\ncontrol_queue = true\n"),
        ["switch \"rack-0\": `control_queue` is not a key of driver \"sim\"; remove the key, or \
          set another `driver`"]
    );
}

#[test]
fn keys_of_another_driver_are_mistakes() {
    let folder = Folder::new();
    assert!(folder.read("driver = \"sim\"\n").is_ok());
    assert_eq!(
        folder.mistakes("driver = \"linux-tc\"\naddress = \"x\"\ntls = { ca = \"a\" }\n"),
        [
            "switch \"rack-0\": `address` is not a key of driver \"linux-tc\"; remove the key, or \
             set another `driver`",
            "switch \"rack-0\": `tls` is not a key of driver \"linux-tc\"; remove the key, or set \
             another `driver`",
        ]
    );
    assert_eq!(folder.mistakes("driver = \"sim\"\nnetns = \"x\"\n").len(), 1);
    for netns in ["", "run/netns/a"] {
        let wrong = folder.mistakes(&format!("driver = \"linux-tc\"\nnetns = {netns:?}\n"));
        assert!(
            wrong[0].contains("the value is not a network namespace; write a name"),
            "{wrong:?}"
        );
    }
    let unknown = folder.mistakes("driver = \"gnmy\"\n");
    assert!(unknown[0].contains("\"gnmy\" is unknown; write sim, linux-tc"), "{unknown:?}");
}

#[test]
fn a_switch_of_ours_is_on_a_socket_or_behind_certificates() {
    let folder = Folder::new();
    let of = |keys: &str| folder.read(&format!("driver = \"penstock\"\n{keys}"));
    let driver = |file: ControllerFile| file.switches.into_values().next().unwrap().driver;
    let socket = driver(of("address = \"unix:///run/leaf.sock\"\n").unwrap());
    assert_eq!(socket, DriverFile::Penstock(PenstockFile::Socket("/run/leaf.sock".into())));
    let tls = "address = \"leaf:7100\"\ntls = { ca = \"a\", cert = \"c\", key = \"k\" }\n";
    let DriverFile::Penstock(PenstockFile::Tcp { address, cert, server_name, .. }) =
        driver(of(tls).unwrap())
    else {
        panic!("not by TCP")
    };
    assert_eq!((&*address, cert, &*server_name), ("leaf:7100", folder.0.join("c"), "rack-0"));
    let mistake = |keys: &str| of(keys).map(|_| ()).unwrap_err();
    for (keys, why) in [
        ("", "write unix:///PATH of the daemon's socket, or HOST:PORT"),
        ("address = \"unix://run/leaf.sock\"\n", "\"run/leaf.sock\" is relative"),
        ("address = \"unix:///a\"\ntls = { ca = \"a\" }\n", "`tls` has no effect on a unix socket"),
        ("address = \"leaf:7100\"\n", "needs certificates; add `tls`"),
        ("address = \"leaf:7100\"\ntls = { ca = \"a\" }\n", "add `cert` and `key`"),
        ("address = \"unix:///a\"\nuser = \"a\"\n", "not a key of driver \"penstock\""),
    ] {
        let mistakes = mistake(keys);
        assert!(mistakes.len() == 1 && mistakes[0].contains(why), "{keys}: {mistakes:?}");
    }
}

#[test]
fn connections_of_a_certificate_are_within_reason() {
    let folder = Folder::new();
    assert_eq!(folder.read("driver = \"sim\"\n").unwrap().connections_per_certificate, 4);
    let file = folder.0.join("controller.toml");
    let key = "[controller]\nconnections_per_certificate = 0";
    let text = format!("{HEAD}driver = \"sim\"\n").replace("[controller]", key);
    fs::write(&file, text).unwrap();
    let error = load_controller(&file).unwrap_err().to_string();
    assert!(error.contains("`connections_per_certificate`: 0; write 1 to 1000"), "{error}");
}

/// Reads a controller's file for a datacenter whose section `[fabric]` has the given keys. `more`
/// follows the controller's `[[switch]]`.
fn with_fabric(folder: &Folder, keys: &str, more: &str) -> Result<ControllerFile, Vec<String>> {
    let text = TOPOLOGY.replace("\n\n[servers]", &format!("\n{keys}\n\n[servers]"));
    fs::write(folder.0.join("fabric.toml"), text).unwrap();
    folder.read(&format!("driver = \"linux-tc\"\n{more}"))
}

#[test]
fn no_port_uses_a_reserved_queue_or_code_point() {
    let folder = Folder::new();
    let keys = "queues = 8\nreserved_queues = 3\nreserved_code_points = [1, 3]";
    let file = with_fabric(&folder, keys, "[binding]\nreserved_code_points = [2]\n").unwrap();
    let FabricFile { topology, headroom_permille, policy, .. } = file.fabric;
    let fabric = Fabric::new(topology, headroom_permille, policy, file.binding).unwrap();
    let nodes = (0..fabric.topology().layers()).flat_map(|layer| fabric.topology().layer(layer));
    let ports: Vec<_> = nodes.flat_map(|node| fabric.ports_of(node)).collect();
    // Each of the two hosts has an uplink, and the switch has a port to each host.
    assert_eq!(ports.len(), 4);
    for port in ports {
        let state = fabric.port(port);
        assert_eq!(state.weights.len(), 6, "{port:?}");
        assert_eq!(state.map, [(4, 1), (5, 2), (6, 3), (7, 4), (8, 5)].into(), "{port:?}");
    }
}

#[test]
fn reserved_code_points_of_the_datacenter_have_at_most_six_bits() {
    let folder = Folder::new();
    let errors = with_fabric(&folder, "reserved_code_points = [64]", "").map(|_| ()).unwrap_err();
    let mistake = "code point 64 has more than six bits; write 1 to 63";
    assert!(errors.len() == 1 && errors[0].ends_with(mistake), "{errors:?}");
}

#[test]
fn reserved_queues_are_not_the_controllers_to_give() {
    let folder = Folder::new();
    let bound = |keys: &str| with_fabric(&folder, keys, "").unwrap().binding.queues;
    assert_eq!(bound(""), 8);
    assert_eq!(bound("queues = 8\nreserved_queues = 3"), 6, "the shared one and five");
    assert_eq!(bound("queues = 4\nreserved_queues = 3"), 2);
    let other = |keys: &str| with_fabric(&folder, keys, "").unwrap().binding.other_permille;
    assert_eq!(other("headroom_pct = 12.5"), 0, "no queue of other traffic");
    assert_eq!(other("headroom_pct = 12.5\nreserved_queues = 3"), 125);
}

#[test]
fn tenants_do_not_get_the_code_points_of_other_traffic() {
    let folder = Folder::new();
    let text = TOPOLOGY.replace("\n\n[servers]", "\nreserved_code_points = [3, 4]\n\n[servers]");
    fs::write(folder.0.join("fabric.toml"), text).unwrap();
    let missing = |keys: &str| {
        let file = folder.read(keys).unwrap();
        let values = file.binding.palette.values().to_vec();
        (1..64).filter(|dscp| !values.contains(dscp)).collect::<Vec<u8>>()
    };
    assert_eq!(missing("driver = \"sim\"\n"), [3, 4]);
    let sonic = "driver = \"sonic-configdb\"\naddress = \"redis://10.0.0.9:6379\"\n";
    assert_eq!(missing(sonic), [3, 4, 48, 56], "SONiC's network control is not for tenants");
    assert_eq!(missing(&format!("{sonic}control_queue = true\n")), [3, 4]);
}

/// Returns the file with `text` instead of the default keys of `[controller]` and `[store]`.
fn with_head(folder: &Folder, text: &str) -> Result<ControllerFile, Vec<String>> {
    let file = folder.0.join("controller.toml");
    let switch = "[[switch]]\nname = \"rack-0\"\ndriver = \"sim\"\n";
    fs::write(&file, format!("[controller]\ntopology = \"fabric.toml\"\n{text}\n{switch}"))
        .unwrap();
    load_controller(&file).map_err(|errors| errors.0.iter().map(ToString::to_string).collect())
}

#[test]
fn paths_of_the_store_begin_at_the_folder_of_the_file() {
    let folder = Folder::new();
    let StoreFile::File(path) = with_head(&folder, "[store]\npath = \"s\"").unwrap().store else {
        panic!("a file")
    };
    assert_eq!(path, folder.0.join("s"));
    let etcd = "[store]\nendpoints = [\"https://e:2379\"]\n\
                tls = { ca = \"ca.pem\", cert = \"/etc/c.pem\", key = \"c.key\" }";
    let StoreFile::Etcd { tls: Some(tls), .. } = with_head(&folder, etcd).unwrap().store else {
        panic!("etcd with TLS")
    };
    assert_eq!((tls.ca, tls.cert), (folder.0.join("ca.pem"), PathBuf::from("/etc/c.pem")));
    assert_eq!(tls.key, folder.0.join("c.key"));
    let empty = with_head(&folder, "[store]\npath = \"\"").map(|_| ()).unwrap_err();
    assert!(empty[0].contains("`path` is empty"), "{empty:?}");
}

#[test]
fn a_wrong_number_has_its_key_value_and_range() {
    let folder = Folder::new();
    for (keys, says) in [
        ("drain_ms = -1", "`drain_ms`: -1 is out of range; write a whole number from 0 to 10000"),
        (
            "drain_ms = 1.5",
            "`drain_ms`: 1.5 is not a whole number; write a whole number from 0 to 10000",
        ),
        (
            "hold = \"a; b\"",
            "`hold`: \"a; b\" is not a whole number; write a whole number, 0 or above",
        ),
        (
            "reserved_code_points = [5, 300]",
            "`reserved_code_points`: 300 is out of range; write a whole number from 1 to 63",
        ),
    ] {
        let told = folder.mistakes(&format!("driver = \"sim\"\n[binding]\n{keys}\n"));
        assert_eq!(told, [format!("[binding]: {says}")]);
    }
}

#[test]
fn settings_without_an_effect_are_mistakes() {
    let folder = Folder::new();
    let (agents, store) = ("agents = \"127.0.0.1:7443\"\n", "[store]\npath = \"s\"\n");
    let tls = "[tls]\nca = \"a\"\ncert = \"b\"\nkey = \"c\"\n";
    let number = "connections_per_certificate = 9\n";
    assert!(with_head(&folder, &format!("{agents}{number}{store}{tls}")).is_ok());
    for (text, says) in [
        (format!("{store}{tls}"), "[tls]: the section has no effect without `agents`"),
        (
            format!("{number}{store}"),
            "`connections_per_certificate` has no effect without `agents`",
        ),
        (format!("{agents}{number}{store}"), "has no effect without [tls]; add [tls], or remove"),
        (
            format!("{store}tls = {{ ca = \"a\", cert = \"b\", key = \"c\" }}\n"),
            "[store]: `tls` has no effect on a store in a file; remove `tls`, or write `endpoints`",
        ),
        ("[store]\nendpoints = []\n".to_owned(), "`endpoints` is empty; write a member's URL"),
        (
            "[store]\nendpoints = [\"http://e:1\", \"http://e:1\"]\n".to_owned(),
            "[store]: `endpoints` names `http://e:1` twice; remove one of the two",
        ),
        (
            format!("{store}[binding]\nreserved_code_points = [5, 0]\n"),
            "code point 0 is that of the shared queue, and no tenant gets it; write 1 to 63",
        ),
        (
            format!("{store}[binding]\nreserved_code_points = [5, 5]\n"),
            "code point 5 is listed twice; remove one of the two",
        ),
    ] {
        let errors = with_head(&folder, &text).map(|_| ()).unwrap_err();
        assert!(errors.len() == 1 && errors[0].contains(says), "{text}: {errors:?}");
    }
    let high = format!("{store}[binding]\nreserved_code_points = [64]\n");
    let high = with_head(&folder, &high).map(|_| ()).unwrap_err();
    let says = "[binding]: code point 64 has more than six bits; write 1 to 63";
    assert!(high.len() == 1 && high[0].ends_with(says), "{high:?}");
    let twice = HEAD.replace("[\"b\"]", "[\"a\"]");
    fs::write(folder.0.join("controller.toml"), format!("{twice}driver = \"linux-tc\"\n")).unwrap();
    let error = load_controller(&folder.0.join("controller.toml")).unwrap_err().to_string();
    assert!(error.contains("interface `a` is listed twice; write each interface once"), "{error}");
}

#[test]
fn the_name_and_addresses_of_a_controller_are_checked() {
    let folder = Folder::new();
    let long = format!("socket = \"/{}\"", "s".repeat(107));
    for (key, says) in [
        ("name = \"\"", ": [controller]: the name is empty; write 1 to 64 characters"),
        ("name = \"dc one\"", ": [controller]: the name contains ' '"),
        ("socket = \"c.sock\"", "\"c.sock\" is relative; write an absolute path"),
        (long.as_str(), "socket path has 108 bytes, the limit of a unix socket is 107"),
        ("advertise = \"a:7443\"", "`advertise` has no effect without `agents`; add `agents`"),
        ("advertise = \"here\"", "\"here\" is not a URL with a host and a port; write a URL"),
        ("advertise = \"ftp://a:1\"", "is not a URL"),
        ("advertise = \"http://a b:1\"", "is not a URL"),
        ("advertise = \"https://a:70000\"", "is not a URL"),
    ] {
        let agents = if says.contains("`agents`") { "" } else { "agents = \"127.0.0.1:7443\"\n" };
        let text = format!("{key}\n{agents}[store]\npath = \"s\"");
        let errors = with_head(&folder, &text).map(|_| ()).unwrap_err();
        assert!(errors.len() == 1 && errors[0].contains(says), "{key}: {errors:?}");
    }
    let agents = "agents = \"127.0.0.1:7443\"\n[store]\npath = \"s\"";
    for key in ["advertise = \"https://[::1]:7443\"", "advertise = \"a:7443\"", "advertise = \"\""]
    {
        assert!(with_head(&folder, &format!("{key}\n{agents}")).is_ok(), "{key}");
    }
    let binding = "[store]\npath = \"s\"\n[binding]\nhysteresis_pct = 1001";
    let errors = with_head(&folder, binding).map(|_| ()).unwrap_err();
    assert!(errors[0].contains("`hysteresis_pct`: 1001; write 0 to 1000"), "{errors:?}");
}
