//! Tests of a controller process with a switch that speaks gNMI over TLS. The gNMI switch is
//! simulated, with a tree of settings in memory. The controller configures the switch, reads the
//! counters of its queues, and configures the switch again after the switch lost its state.

use std::fs;
use std::path::Path;
use std::time::Duration;

use penstock_controller::Stamp;
use penstock_controller::southbound::gnmi::GnmiSwitch;
use penstock_controller::southbound::{PortInfo, SwitchDriver as _, SwitchState};
use penstock_testing::temp_dir;
use tokio::runtime::Runtime;

use crate::gnmi_target::Target;
use crate::support::controller::{Controller, FABRIC, TAKE_OVER, until};

/// Maximum time until a change reaches the switch: several control intervals of half a second, on a
/// busy machine.
const SOON: Duration = Duration::from_secs(20);
const PORTS: [&str; 6] = ["eth0", "eth1", "eth2", "eth3", "eth4", "Ethernet1/1"];

/// `[[switch]]` tables of the simulated gNMI switch and of two switches in memory.
fn switches(folder: &Path, target: &Target, password: &str) -> String {
    let settings = target.settings();
    fs::write(folder.join("target.pem"), settings.tls.unwrap().authority).unwrap();
    fs::write(folder.join("password"), format!("{password}\n")).unwrap();
    let servers = (0..5).map(|n| format!("server-{n} = [\"{}\"], ", PORTS[n]));
    let servers: String = servers.collect();
    format!(
        "\n[[switch]]\nname = \"rack-0\"\ndriver = \"gnmi\"\naddress = {:?}\n\
         tls = {{ ca = \"target.pem\" }}\nuser = \"admin\"\npassword_file = \"password\"\n\
         interfaces = {{ {servers}core-0 = [{:?}] }}\n\n\
         [[switch]]\nname = \"rack-1\"\ndriver = \"sim\"\n\n\
         [[switch]]\nname = \"core-0\"\ndriver = \"sim\"\n",
        settings.address, PORTS[5]
    )
}

fn read_back(runtime: &Runtime, target: &Target) -> SwitchState {
    let rate = penstock_units::BitsPerSecond(1);
    let ports = PORTS.map(|name| PortInfo { name: name.to_owned(), rate });
    let switch = GnmiSwitch::new("rack-0", &ports, target.settings()).unwrap();
    runtime.block_on(switch.read_back()).unwrap()
}

fn start(folder: &Path, switches: &str) -> Controller {
    let store = format!("path = {:?}", folder.join("store.redb"));
    let controller = Controller::over(folder, "one", &store, FABRIC, switches);
    until(TAKE_OVER, "it leads", || controller.leads());
    controller
}

#[test]
fn a_target_is_set_up_from_the_controllers_file_and_again_when_it_forgot() {
    let runtime = Runtime::new().unwrap();
    let target = runtime.block_on(Target::start());
    let folder = temp_dir();
    let controller = start(&folder, &switches(&folder, &target, "secret"));
    // One of the four queues is shared. In a static map, the queue equals the code point.
    let is_set_up = |state: &SwitchState| {
        let map = [(1, 1), (2, 2), (3, 3)].into();
        state.stamp > Stamp::default() && state.ports.values().all(|port| port.map == map)
    };
    until(SOON, "it is set up", || is_set_up(&read_back(&runtime, &target)));
    assert_eq!(read_back(&runtime, &target).stamp.epoch, controller.epoch());
    target.put(
        "/qos/interfaces/interface[interface-id=Ethernet1/1]/output/queues/queue[name=pen-q1]\
         /state/transmit-pkts",
        "17",
    );
    let (_, counters) = controller.ask(&["switch-counters"]).unwrap();
    let queues = counters["rack-0"].as_array().unwrap();
    let counted = queues.iter().find(|q| q["port"] == "Ethernet1/1" && q["queue"] == 1).unwrap();
    assert_eq!((queues.len(), counted["packets"].as_u64()), (PORTS.len() * 4, Some(17)));
    // The controller does not send settings again that are already correct.
    let sets = target.sets();
    let before = controller.ask(&["status"]).unwrap().1["last_interval"]["number"].clone();
    until(SOON, "two more intervals", || {
        let now = controller.ask(&["status"]).unwrap().1["last_interval"]["number"].clone();
        now.as_u64() > before.as_u64().map(|n| n + 1)
    });
    assert_eq!(target.sets(), sets);
    // The switch restarts without its state.
    target.forget();
    until(SOON, "it is set up again", || is_set_up(&read_back(&runtime, &target)));
    assert_eq!(target.sets(), sets + 1);
}

#[test]
fn a_wrong_password_is_told_and_holds_up_nobody() {
    let runtime = Runtime::new().unwrap();
    let target = runtime.block_on(Target::start());
    let folder = temp_dir();
    let controller = start(&folder, &switches(&folder, &target, "wrong"));
    let complaint = || {
        let events = controller.ask(&["events"]).unwrap().1.to_string();
        events.contains("who are you?") && !events.contains("wrong")
    };
    until(SOON, "the target's complaint", complaint);
    assert_eq!(target.sets(), 0);
}
