//! `penstock capture` and mirrors at the ports of a running daemon. The guests are in the test's
//! process, so the test knows each byte that they send and receive.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};

use penstock_guest::driver::{DriverConfig, VirtioNet, VnetHdr};
use penstock_testing::{patience, temp_dir};

use crate::support::{self, BINARY, Daemon, await_true};

const HEADER: usize = 12;

/// A switch with the VMs `vm1`, `vm2` and `probe`, which has another tenant. A rule drops frames of
/// vm1 with `EtherType` 0x88b6.
struct Bed {
    daemon: Daemon,
    guests: Vec<VirtioNet>,
}

impl Bed {
    fn start() -> Option<Self> {
        let scratch = temp_dir();
        let at = scratch.display();
        let port = |name: &str, tenant: &str| {
            format!(
                "[[port]]\nname = \"{name}\"\ntenant = \"{tenant}\"\n\
                 labels = {{ id = \"x-{name}\" }}\n\
                 vhost-user.socket = \"{at}/{name}.sock\"\n"
            )
        };
        let objects = format!(
            "[[tenant]]\nname = \"red\"\n[[tenant]]\nname = \"monitor\"\n{}{}{}\
             [[rule]]\nname = \"deny-88b6\"\nport = \"vm1\"\nmatch = {{ ethertype = 0x88b6 }}\n\
             actions = [\"drop\"]\n",
            port("vm1", "red"),
            port("vm2", "red"),
            port("probe", "monitor")
        );
        let file = support::configuration(&scratch, &objects);
        fs::write(scratch.join("host.toml"), file).unwrap();
        let daemon = Daemon::start_in(scratch)?;
        let attach = |name: &str| {
            let mut config = DriverConfig::new(daemon.scratch.join(format!("{name}.sock")));
            (config.hugepages, config.wait) = (false, patience());
            VirtioNet::connect(config).unwrap()
        };
        let guests = ["vm1", "vm2", "probe"].map(attach).into();
        let mut bed = Self { daemon, guests };
        // The switch learns both stations, so that no later frame is flooded.
        bed.send(0, &[frame(0, 1, 60, 0xb5)]);
        bed.send(1, &[frame(1, 0, 60, 0xb5)]);
        assert_eq!((bed.receive(1, 1).len(), bed.receive(0, 1).len()), (1, 1));
        Some(bed)
    }

    fn send(&mut self, from: usize, frames: &[Vec<u8>]) {
        let tx = self.guests[from].tx();
        for bytes in frames {
            tx.reclaim(|_| ());
            let slot = tx.take().unwrap();
            tx.slot_mut(slot)[HEADER..HEADER + bytes.len()].copy_from_slice(bytes);
            tx.push(slot, &VnetHdr::default(), bytes.len()).unwrap();
        }
        tx.publish();
    }

    /// Waits until the guest has received `count` frames, and returns them.
    fn receive(&mut self, at: usize, count: usize) -> Vec<Vec<u8>> {
        let mut got = Vec::new();
        await_true("frames to arrive", || {
            self.guests[at]
                .rx()
                .recv(64, |frame| got.push(frame.segments().collect::<Vec<_>>().concat()));
            got.len() >= count
        });
        got
    }

    fn capture(&self, arguments: &str) -> Capture {
        let mut child = Command::new(BINARY)
            .args(["capture"])
            .args(arguments.split(' '))
            .env("PENSTOCK_SOCKET", self.daemon.socket())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut told = BufReader::new(child.stderr.take().unwrap());
        let mut line = String::new();
        told.read_line(&mut line).unwrap();
        assert!(line.starts_with("capturing at port vm"), "{line}");
        Capture { child, told }
    }
}

struct Capture {
    child: Child,
    told: BufReader<std::process::ChildStderr>,
}

impl Capture {
    /// Waits for the end of the capture. Returns standard output, and the last line of standard
    /// error.
    fn end(self) -> (Vec<u8>, String) {
        let output = self.child.wait_with_output().unwrap();
        assert!(output.status.success());
        (output.stdout, self.told.lines().map(Result::unwrap).last().unwrap_or_default())
    }
}

/// A frame of `len` bytes with `EtherType` 0x88 and `kind`.
fn frame(from: u8, to: u8, len: usize, kind: u8) -> Vec<u8> {
    let mut bytes = vec![0x52, 0x54, 0, 0, 8, to, 0x52, 0x54, 0, 0, 8, from, 0x88, kind];
    let rest = (bytes.len()..len).map(|at| u8::try_from(at % 253).unwrap());
    bytes.extend(rest.collect::<Vec<_>>());
    bytes
}

/// Reads a pcapng file. Returns the bytes and the comment of each frame.
fn read(mut file: &[u8]) -> Vec<(Vec<u8>, String)> {
    let mut frames = Vec::new();
    while !file.is_empty() {
        let word = |at: usize| u32::from_le_bytes(file[at..at + 4].try_into().unwrap()) as usize;
        let len = word(4);
        if word(0) == 6 {
            let (captured, at) = (word(20), 28);
            assert_eq!(word(24), captured, "frames are whole");
            let options = &file[at + captured.next_multiple_of(4)..];
            assert_eq!(options[..2], [1, 0], "the comment is the first option");
            let comment = usize::from(u16::from_le_bytes([options[2], options[3]]));
            let comment = String::from_utf8(options[4..4 + comment].to_vec()).unwrap();
            frames.push((file[at..at + captured].to_vec(), comment));
        }
        file = &file[len..];
    }
    frames
}

#[test]
fn a_file_has_what_the_guest_sent_and_received_with_verdict_reason_and_rule() {
    let Some(mut bed) = Bed::start() else { return };
    let capture = bed.capture("vm1 -w - -c 4");
    let (there, denied) = (frame(0, 1, 1_514, 0xb5), frame(0, 1, 77, 0xb6));
    let (back, small) = (frame(1, 0, 900, 0xb5), frame(0, 1, 60, 0xb5));
    bed.send(0, &[there.clone(), denied.clone(), small.clone()]);
    bed.send(1, core::slice::from_ref(&back));
    assert_eq!(bed.receive(1, 2), [there.clone(), small.clone()]);
    assert_eq!(bed.receive(0, 1), core::slice::from_ref(&back));
    let (file, last) = capture.end();
    let mut frames = read(&file);
    frames.sort_by_key(|(bytes, _)| bytes.len());
    let told = |more: &str| format!("port=vm1 {more}");
    assert_eq!(
        frames,
        [
            (small, told("direction=in verdict=forwarded to=vm2")),
            (denied, told("direction=in verdict=dropped reason=rule rule=deny-88b6")),
            (back, told("direction=out verdict=forwarded from=vm2")),
            (there, told("direction=in verdict=forwarded to=vm2")),
        ]
    );
    assert!(last.starts_with("4 frames captured, 0 left out"), "{last}");
}

#[test]
fn drops_directions_and_filters_choose_frames() {
    let Some(mut bed) = Bed::start() else { return };
    let drops = bed.capture("vm1 --drops -c 2");
    // A port can be named by its label.
    let sent = bed.capture("id=x-vm1 --direction out -c 1");
    let chosen = bed.capture("vm2 --filter mac=52:54:00:00:08:00,ethertype=0x88b7 -c 1");
    let frames = [0xb6, 0xb7, 0xb6, 0xb5].map(|kind| frame(0, 1, 100, kind));
    bed.send(0, &frames);
    bed.send(1, &[frame(1, 0, 200, 0xb5)]);
    assert_eq!((bed.receive(1, 2).len(), bed.receive(0, 1).len()), (2, 1));
    let lines = |capture: Capture| {
        let text = String::from_utf8(capture.end().0).unwrap();
        text.lines().map(str::to_owned).collect::<Vec<_>>()
    };
    for line in lines(drops) {
        assert!(line.ends_with("verdict=dropped reason=rule rule=deny-88b6"), "{line}");
    }
    let [line] = &lines(sent)[..] else { panic!("one line") };
    assert!(line.contains("200 B") && line.contains("port=vm1 direction=out"), "{line}");
    let [line] = &lines(chosen)[..] else { panic!("one line") };
    assert!(line.contains("ethertype 0x88b7") && line.ends_with("from=vm1"), "{line}");
    let counted = bed.daemon.ask("stats vm1 --json").json();
    assert_eq!(counted["ports"][0]["drops"]["rule"], 2, "as many as were captured");
    bed.daemon.ask("stats --check").ok();
}

#[test]
fn wrong_captures_are_refused_and_an_end_of_the_port_ends_them() {
    let Some(bed) = Bed::start() else { return };
    for (arguments, words) in [
        ("vm9", &["port \"vm9\"", "penstock port list"][..]),
        ("vm1 --filter port=80", &["filter: `port` without `proto`; add proto=tcp"]),
        ("vm1 --filter src_port=80", &["capture filter: `src_port` without `proto`; add proto"]),
        ("vm1 --filter host=", &["filter \"host=\": the value is missing; write host=VALUE"]),
        ("vm1 --filter tcp", &["filter \"tcp\"", "proto=tcp port=80"]),
        ("vm1 --filter colour=red", &["capture filter: unknown key `colour`", "known here"]),
        ("vm1 --filter dst=300.1.1.1", &["capture filter", "300.1.1.1"]),
        ("vm1 -w /nonexistent/file", &["file /nonexistent/file", "choose another"]),
    ] {
        let refused = bed.daemon.ask(&format!("capture {arguments}")).fails();
        assert!(words.iter().all(|word| refused.contains(word)), "{arguments}: {refused}");
    }
    let running: Vec<_> = (0..4).map(|_| bed.capture("vm2")).collect();
    let refused = bed.daemon.ask("capture vm1").fails();
    assert!(refused.contains("4 captures run") && refused.contains("end one"), "{refused}");
    bed.daemon.ask("port del vm2 --no-save").ok();
    for capture in running {
        let output = capture.child.wait_with_output().unwrap();
        let told: Vec<_> = capture.told.lines().map(Result::unwrap).collect();
        assert!(!output.status.success() && told.join(" ").contains("the port was removed"));
    }
    // Their places are free again, and the switch has forgotten them.
    await_true("room for a capture", || {
        let end = bed.daemon.ask("capture vm1 --secs 1");
        end.status.success()
    });
}

#[test]
fn a_refused_capture_leaves_files_as_they_were() {
    let Some(bed) = Bed::start() else { return };
    let at = |name: &str| bed.daemon.scratch.join(name);
    fs::write(at("old.pcapng"), "precious").unwrap();
    for name in ["old.pcapng", "new.pcapng"] {
        let refused = bed.daemon.ask(&format!("capture vm9 -w {}", at(name).display())).fails();
        assert!(refused.contains("port \"vm9\""), "{refused}");
    }
    assert_eq!(fs::read_to_string(at("old.pcapng")).unwrap(), "precious");
    assert!(!at("new.pcapng").exists());
    // The path is checked before the command connects.
    let refused = support::penstock(&at("none.sock"), &["capture", "vm1", "-w", "/none/file"]);
    assert!(refused.fails().contains("file /none/file"));
    let terminal = fs::File::options().read(true).write(true).open("/dev/ptmx").unwrap();
    let mut command = Command::new(BINARY);
    command.args(["capture", "vm1", "-w", "-", "--secs", "1"]).stdout(terminal);
    let output = command.env("PENSTOCK_SOCKET", bed.daemon.socket()).output().unwrap();
    let told = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success() && told.contains("it is a terminal"), "{told}");
    // A capture that begins replaces the content of the file.
    bed.daemon.ask(&format!("capture vm1 --secs 1 -w {}", at("old.pcapng").display())).ok();
    assert_eq!(fs::read(at("old.pcapng")).unwrap()[..4], [0x0a, 0x0d, 0x0d, 0x0a]);
}

#[test]
fn a_capture_ends_although_its_reader_has_stopped() {
    let Some(mut bed) = Bed::start() else { return };
    // More bytes than a pipe holds.
    let mut capture = bed.capture("vm1 --direction in -w - -c 200");
    let there = vec![frame(0, 1, 1_514, 0xb5); 20];
    await_true("the end of the capture", || {
        bed.send(0, &there);
        bed.receive(1, there.len());
        capture.child.try_wait().unwrap().is_some()
    });
    assert!(!capture.child.wait().unwrap().success());
    let told: Vec<_> = capture.told.lines().map(Result::unwrap).collect();
    let [missing, numbers] = &told[..] else { panic!("{told:?}") };
    assert!(missing.contains("the reader of the output takes nothing"), "{missing}");
    assert!(!numbers.contains(" 0 lost because the reader was too slow"), "{numbers}");
}

#[test]
fn a_mirror_is_changed_while_frames_flow() {
    let Some(mut bed) = Bed::start() else { return };
    let refused = bed.daemon.ask("port set vm1 mirror.to=vm1").fails();
    assert!(refused.contains("the port mirrors itself"), "{refused}");
    let refused = bed.daemon.ask("port set vm1 mirror.to=nobody").fails();
    assert!(refused.contains("there is no port \"nobody\""), "{refused}");
    bed.daemon.ask("port set vm1 mirror.to=probe").ok();
    let refused = bed.daemon.ask("port set probe mirror.to=vm2").fails();
    assert!(refused.contains("has a mirror itself"), "{refused}");
    bed.send(0, &[frame(0, 1, 100, 0xb5), frame(0, 1, 101, 0xb6)]);
    bed.send(1, &[frame(1, 0, 102, 0xb5)]);
    let mut copies = bed.receive(2, 3);
    copies.sort_by_key(Vec::len);
    let all = [frame(0, 1, 100, 0xb5), frame(0, 1, 101, 0xb6), frame(1, 0, 102, 0xb5)];
    assert_eq!(copies, all, "also what a rule drops");
    assert_eq!((bed.receive(1, 1).len(), bed.receive(0, 1).len()), (1, 1));

    bed.daemon.ask("port set vm1 mirror.to=").ok();
    let rule =
        "flow add look port=vm1 priority=200 match.ethertype=0x88b5 actions=mirror:probe,normal";
    bed.daemon.ask(rule).ok();
    let listed = bed.daemon.ask("flow list").ok();
    assert!(listed.contains("mirror:probe, normal"), "{listed}");
    bed.send(0, &[frame(0, 1, 110, 0xb7), frame(0, 1, 111, 0xb5)]);
    assert_eq!(bed.receive(2, 1), [frame(0, 1, 111, 0xb5)]);
    assert_eq!(bed.receive(1, 2).len(), 2);
    let refused = bed.daemon.ask("port del probe").fails();
    assert!(refused.contains("look") && refused.contains("probe"), "{refused}");
    bed.daemon.ask("stats --check").ok();
}

#[test]
fn a_full_disk_is_an_error_that_names_the_file() {
    let Some(bed) = Bed::start() else { return };
    let Capture { mut child, told } = bed.capture("vm1 -w /dev/full");
    let told: Vec<String> = told.lines().map(Result::unwrap).collect();
    assert_eq!(child.wait().unwrap().code(), Some(1));
    let error = told.last().unwrap();
    assert!(error.contains("file /dev/full: cannot be written (No space left"), "{told:?}");
}
