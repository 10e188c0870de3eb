//! Tests of the command line's grammar and help texts.

use super::*;
use clap::CommandFactory as _;

fn parse(line: &str) -> Result<Cli, clap::Error> {
    Cli::try_parse_from(line.split_whitespace())
}

#[test]
fn the_grammar_has_no_contradiction() {
    Cli::command().debug_assert();
}

#[test]
fn every_command_of_the_design_parses() {
    for line in [
        "penstock host run --config h.toml --foreground --log-format json",
        "penstock host check --config h.toml --json",
        "penstock host show",
        "penstock host config",
        "penstock host reload --json",
        "penstock host schema",
        "penstock host schema controller",
        "penstock port list --json",
        "penstock port show vm1",
        "penstock port add vm3 vhost-user.socket=/run/p/vm3.sock vlan=100 --no-save",
        "penstock port set vm3 vlan=101 mac=",
        "penstock port del vm3",
        "penstock tenant list",
        "penstock tenant add red vlans=[1,5-9]",
        "penstock tenant set red fdb_limit=10",
        "penstock tenant del red",
        "penstock flow list",
        "penstock flow add web priority=9 match=dst_port=80 actions=drop",
        "penstock flow del web",
        "penstock fdb list --tenant red --json",
        "penstock fdb flush --port vm1 --vlan 0",
        "penstock stats vm1 vm2 --drops",
        "penstock stats vm1 --delays",
        "penstock stats up --queues",
        "penstock stats --watch 0.5",
        "penstock stats --watch",
        "penstock stats --check",
        "penstock top --interval 2",
        "penstock explain vm1 --over 5 --json",
        "penstock endpoint --create-netns --nic socket=/tmp/a.sock,netns=a,ip=10.0.0.1/24",
        "penstock guard",
        "penstock calibrate --quick --out model.toml",
        "penstock calibrate --rounds 9 --out - --worker-core 1",
        "penstock completions bash",
        "penstock man /usr/share/man/man1",
        "penstock support-bundle --out /tmp/bundle.tar.gz",
        "penstock controller check --config c.toml --json",
        "penstock controller plan --topology f.toml --tenants t.toml --picture t.svg --json",
        "penstock controller what-if --topology f.toml --tenants t.toml --queues 4,8",
        "penstock controller what-if --topology f --tenants t --usage u.csv --map static-map",
        "penstock --socket /tmp/x port list",
        "penstock port list --socket /tmp/x",
    ] {
        assert!(parse(line).is_ok(), "{line}: {}", parse(line).unwrap_err());
    }
}

#[test]
fn what_makes_no_sense_is_a_usage_error() {
    for line in [
        "penstock host run",
        "penstock port add",
        "penstock stats --watch 0",
        "penstock explain",
        "penstock explain vm1 --over 11",
        "penstock stats --watch 1 --check",
        "penstock fdb flush --vlan 4095",
        "penstock port frobnicate",
        "penstock port list -l =1",
        "penstock report -l =1",
        "penstock controller plan --topology f.toml",
        "penstock controller tenant grow red 0",
        "penstock controller what-if --topology f --tenants t --inactive NaN",
        "penstock controller what-if --topology f --tenants t --oversubscription 0",
        "penstock controller what-if --topology f --tenants t --usage u --seed 2",
    ] {
        let error = parse(line).unwrap_err();
        assert_eq!(error.exit_code(), 2, "{line}");
    }
}

#[test]
fn what_is_another_programs_by_now_names_it() {
    for (line, now) in [
        ("penstock lab run c2qos-fig5 --json -", "`penstock-lab run`"),
        ("penstock lab endpoint --create-netns", "`penstock endpoint`"),
        ("penstock lab --help", "`penstock-lab`"),
        ("penstock lab", "`penstock-lab`"),
        ("penstock bench v2v --version --peer ovs-dpdk", "`penstock-lab bench v2v`"),
    ] {
        let said = match parse(line).unwrap().command {
            Command::Lab(moved) => moved.text("lab"),
            Command::Bench(moved) => moved.text("bench"),
            other => panic!("{line}: {other:?}"),
        };
        assert!(said.contains(&format!("is {now} now")), "{line}: {said}");
    }
}

#[test]
fn an_interval_is_whole_milliseconds() {
    assert_eq!(interval_ms(0.1), 100);
    assert_eq!(interval_ms(1.2345), 1235);
}

/// Calls `look` with the name and grammar of each command that `--help` lists.
fn each_command(command: &clap::Command, look: &mut dyn FnMut(&str, &clap::Command)) {
    for sub in command.get_subcommands().filter(|sub| !sub.is_hide_set()) {
        look(sub.get_name(), sub);
        each_command(sub, look);
    }
}

/// Whether a help text says no more than the name, or has a sentence that is too long.
fn is_bad_help(text: &str) -> bool {
    const WORDS: [&str; 8] =
        ["anew", "asked for", "as it is", "who is", "Its ", "What ", "Which", "is to be"];
    let sentences = text.split(". ").map(|sentence| sentence.split_whitespace().count());
    text.split_whitespace().count() < 2
        || WORDS.iter().any(|word| text.contains(word))
        || sentences.max() > Some(25)
}

#[test]
fn every_command_and_option_is_explained() {
    let mut root = Cli::command();
    root.build();
    let mut bad = Vec::new();
    each_command(&root, &mut |name, command| {
        if name == "help" {
            return;
        }
        let about = command.get_about().map(ToString::to_string).unwrap_or_default();
        if is_bad_help(&about) {
            bad.push(format!("{name}: {about:?}"));
        }
        let hidden = ["help", "version"];
        for arg in command.get_arguments().filter(|arg| !hidden.contains(&arg.get_id().as_str())) {
            let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
            if is_bad_help(&help) {
                bad.push(format!("{name} {}: {help:?}", arg.get_id()));
            }
        }
    });
    assert!(bad.is_empty(), "{bad:#?}");
}

#[test]
fn help_names_the_socket_of_the_daemon_that_answers() {
    let mut root = Cli::command();
    root.build();
    let socket_of = |path: &[&str]| {
        let find = |command: &clap::Command, name: &&str| {
            command.find_subcommand(name).unwrap_or_else(|| panic!("{name}")).clone()
        };
        let command = path.iter().fold(root.clone(), |command, name| find(&command, name));
        let arg = command.get_arguments().find(|arg| arg.get_id() == "socket").cloned();
        arg.unwrap().get_help().unwrap().to_string()
    };
    assert!(socket_of(&["port", "list"]).contains(DEFAULT_SOCKET));
    for path in [&["controller"][..], &["controller", "status"], &["controller", "tenant", "add"]] {
        let help = socket_of(path);
        assert!(help.contains(DEFAULT_CONTROLLER) && !help.contains("[host]"), "{path:?}: {help}");
    }
}

#[test]
fn a_socket_may_stand_before_or_behind_the_command() {
    for line in [
        "penstock --socket /tmp/x controller status",
        "penstock controller --socket /tmp/x status",
        "penstock controller status --socket /tmp/x",
    ] {
        let Command::Controller(args) = parse(line).unwrap().command else { panic!("{line}") };
        assert_eq!(args.socket.as_deref(), Some(std::path::Path::new("/tmp/x")), "{line}");
    }
}
