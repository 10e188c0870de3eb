//! Runs the commands that the documentation prints, in every fenced `console` block.
//!
//! # Rules for a page
//! - In a `console` block, a command begins with `$ `. A `\` at a line's end and a here-document
//!   continue the command.
//! - The commands of a documentation page run in order, in one shell, as root. The working
//!   directory is new and contains `examples`. /run and /var/lib are empty, and the network has
//!   only a loopback interface.
//! - A command must succeed, unless the page shows that the command prints an error (`penstock:
//!   ...`).
//! - In a `console` block, the lines below a command are its output. A number in a page matches any
//!   number in the output, and white space matches any white space. In a line of a page, `…`
//!   matches any words; a line that contains only `…` matches any lines. If a page prints no lines
//!   below a command, the test accepts any output of the command.
//! - A program in the background ends after the last command of its documentation page.
//! - If the commands of a page fail, the test repeats them with a longer `sleep`
//!   ([`penstock_testing::scaled`]), because a busy machine needs more time.
//!
//! Code blocks that no test can run, for example with `systemctl`, have another language than
//! `console`.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use penstock_testing::{scaled, temp_dir};

use crate::support::BINARY;

/// Time limit for the commands of a documentation page.
const LIMIT: Duration = Duration::from_secs(180);
/// Programs of other packages that the commands of the documentation use.
const OTHERS: [&str; 6] = ["ping", "iperf3", "jq", "openssl", "ip", "penstock-lab"];

/// Declares a test function for each page of the documentation, and a list of all pages.
macro_rules! pages {
    ($($(#[$more:meta])* $name:ident: $path:literal,)*) => {
        const PAGES: &[&str] = &[$($path),*];
        $(#[test]
        $(#[$more])*
        fn $name() {
            run($path);
        })*
    };
}

pages! {
    readme: "README.md",
    tutorial_sell_cycles: "docs/tutorials/sell-cycles.md",
    #[ignore = "a calibration takes both processors; scripts/checks.sh contracts"]
    tutorial_contracts: "docs/tutorials/contracts.md",
    tutorial_share_an_uplink: "docs/tutorials/share-an-uplink.md",
    tutorial_smooth_and_schedule: "docs/tutorials/smooth-and-schedule.md",
    tutorial_guarantee_in_a_fabric: "docs/tutorials/guarantee-in-a-fabric.md",
    guide_fabric: "docs/guides/fabric.md",
    reference_cli: "docs/reference/cli.md",
    reference_controller: "docs/reference/controller.md",
    reference_fabric: "docs/reference/fabric.md",
}

/// A command that a page of the documentation prints.
#[derive(Debug, Default, PartialEq)]
struct Printed {
    /// Line number of the command in its page, from 1.
    line: usize,
    words: String,
    /// Expected output of the command: the lines that follow the command in the page.
    shows: Vec<String>,
}

fn sources() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn commands(text: &str) -> Vec<Printed> {
    let mut found: Vec<Printed> = Vec::new();
    // Indentation of the open block.
    let mut block = None;
    let mut lines = text.lines().enumerate();
    while let Some((n, line)) = lines.next() {
        if let Some(fence) = line.trim_start().strip_prefix("```") {
            let indent = line.len() - line.trim_start().len();
            block = (block.is_none() && fence == "console").then_some(indent);
            continue;
        }
        let Some(indent) = block else { continue };
        let strip = |line: &str| line.get(indent..).unwrap_or_default().to_owned();
        let line = strip(line);
        let Some(words) = line.strip_prefix("$ ") else {
            let last = found.last_mut().expect("a block begins with a command");
            last.shows.push(line);
            continue;
        };
        let mut words = words.to_owned();
        while words.ends_with('\\') {
            let (_, more) = lines.next().expect("a command that goes on");
            words = format!("{words}\n{}", strip(more));
        }
        if let Some((_, rest)) = words.split_once("<<") {
            let end = rest.split_whitespace().next().unwrap().trim_matches('\'').to_owned();
            loop {
                let (_, more) = lines.next().expect("the end of a here-document");
                words = format!("{words}\n{}", strip(more));
                if strip(more) == end {
                    break;
                }
            }
        }
        found.push(Printed { line: n + 1, words, shows: Vec::new() });
    }
    found
}

/// Returns the shell script that runs the commands of a documentation page. Each command writes to
/// a separate file, and each `sleep` takes `factor` times as long.
fn script(commands: &[Printed], factor: u64, logs: &Path) -> String {
    let logs = logs.display();
    let mut script = format!("sleep() {{ command sleep $(($1 * {factor})); }}\n");
    for (n, command) in commands.iter().enumerate() {
        script += &format!("exec >{logs}/{n}.out 2>&1\n{}\n", command.words);
        script += &format!("echo $? >{logs}/{n}.status\n");
    }
    script
}

/// Runs the commands of a documentation page, and compares the output with the page.
fn run(page: &str) {
    if !nix::unistd::geteuid().is_root() {
        penstock_testing::skip("run as root");
        return;
    }
    let commands = commands(&fs::read_to_string(sources().join(page)).unwrap());
    assert!(!commands.is_empty(), "{page}: no commands");
    let programs = Path::new(BINARY).parent().unwrap();
    let paths = std::env::var("PATH").unwrap_or_default();
    let is_there = |program: &str| {
        std::env::split_paths(&paths).any(|path| path.join(program).exists())
            || programs.join(program).exists()
    };
    let uses = |program: &str| {
        commands.iter().any(|c| c.words.split_whitespace().any(|word| word == program))
    };
    if let Some(program) = OTHERS.into_iter().find(|program| uses(program) && !is_there(program)) {
        penstock_testing::skip(format!("{program} is not installed"));
        return;
    }

    let slow = scaled(Duration::from_secs(1)).as_secs();
    if let Err(problem) = try_once(page, &commands, 1) {
        eprintln!("runs again with {slow} times the sleep, because it failed:\n{problem}");
        try_once(page, &commands, slow).unwrap_or_else(|problem| panic!("{problem}"));
    }
}

fn try_once(page: &str, commands: &[Printed], factor: u64) -> Result<(), String> {
    let programs = Path::new(BINARY).parent().unwrap();
    let paths = std::env::var("PATH").unwrap_or_default();
    let scratch = temp_dir();
    let [work, logs] = ["work", "logs"].map(|name| scratch.join(name));
    fs::create_dir_all(&work).unwrap();
    fs::create_dir_all(&logs).unwrap();
    std::os::unix::fs::symlink(sources().join("examples"), work.join("examples")).unwrap();
    let file = scratch.join("page.sh");
    fs::write(&file, script(commands, factor, &logs)).unwrap();
    let inside = format!(
        "ip link set lo up && mount -t tmpfs none /run && mount -t tmpfs none /var/lib && \
         exec bash {}",
        file.display()
    );
    // All processes of the page end with the first process of their namespace.
    let limit = scaled(LIMIT).as_secs().to_string();
    let mut command = Command::new("timeout");
    command.args([
        "--kill-after=5",
        &limit,
        "unshare",
        "--mount",
        "--net",
        "--pid",
        "--mount-proc",
    ]);
    command.args(["--fork", "--kill-child", "sh", "-c", &inside]);
    command.current_dir(&work).env("PATH", format!("{}:{paths}", programs.display()));
    command.env_remove("PENSTOCK_SOCKET").env_remove("RUST_LOG");
    let ended = command.stdin(Stdio::null()).status().unwrap();

    for (n, command) in commands.iter().enumerate() {
        let read = |kind: &str| fs::read_to_string(logs.join(format!("{n}.{kind}")));
        let place = format!("{page}:{}: {}", command.line, command.words);
        let printed = read("out").unwrap_or_default();
        let Ok(status) = read("status") else {
            return Err(format!("{place}\nended without a status ({ended}):\n{printed}"));
        };
        let fails = command.shows.iter().any(|line| line.starts_with("penstock: "));
        if (status.trim() != "0") != fails {
            return Err(format!("{place}\nstatus {status}printed:\n{printed}"));
        }
        let lines: Vec<&str> = printed.lines().collect();
        let shown: Vec<&str> = command.shows.iter().map(String::as_str).collect();
        if !shown.is_empty() && !same_lines(&shown, &lines) {
            let shown = shown.join("\n");
            return Err(format!("{place}\nthe page shows:\n{shown}\nit printed:\n{printed}"));
        }
    }
    if ended.success() { Ok(()) } else { Err(format!("{page}: {ended}")) }
}

/// Whether the output that a page shows matches the output that the command printed.
fn same_lines(shown: &[&str], printed: &[&str]) -> bool {
    match shown.split_first() {
        None => printed.is_empty(),
        Some((first, rest)) if ["…", "..."].contains(&first.trim()) => {
            (0..=printed.len()).any(|n| same_lines(rest, &printed[n..]))
        }
        Some((first, rest)) => printed.split_first().is_some_and(|(line, others)| {
            same_words(&folded(first), &folded(line)) && same_lines(rest, others)
        }),
    }
}

fn same_words(shown: &[String], printed: &[String]) -> bool {
    match shown.split_first() {
        None => printed.is_empty(),
        Some((first, rest)) if first == "…" => {
            (0..=printed.len()).any(|n| same_words(rest, &printed[n..]))
        }
        Some((first, rest)) => printed
            .split_first()
            .is_some_and(|(word, others)| first == word && same_words(rest, others)),
    }
}

/// Returns the words of a line of output. Every number that is not part of a word becomes `0`.
fn folded(line: &str) -> Vec<String> {
    let number = |word: &str| {
        let mut out = String::new();
        let mut rest = word.chars().peekable();
        while let Some(c) = rest.next() {
            let inside = out.chars().next_back().is_some_and(char::is_alphanumeric);
            out.push(if c.is_ascii_digit() && !inside { '0' } else { c });
            if c.is_ascii_digit() && !inside {
                while rest.next_if(|c| c.is_ascii_digit() || ".,".contains(*c)).is_some() {}
            }
        }
        out
    };
    line.split_whitespace().map(number).collect()
}

/// Every Markdown file with a `console` block, relative to the sources.
fn with_blocks(dir: &Path, found: &mut BTreeSet<String>) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            with_blocks(&path, found);
        } else if path.extension().is_some_and(|e| e == "md") {
            let text = fs::read_to_string(&path).unwrap();
            if text.lines().any(|line| line.trim() == "```console") {
                let page = path.strip_prefix(sources()).unwrap();
                found.insert(page.to_string_lossy().into_owned());
            }
        }
    }
}

#[test]
fn every_page_with_commands_is_run() {
    let mut found = BTreeSet::new();
    for dir in ["docs", "packaging"] {
        with_blocks(&sources().join(dir), &mut found);
    }
    for page in ["README.md", "CONTRIBUTING.md", "SECURITY.md", "ARCHITECTURE.md"] {
        let text = fs::read_to_string(sources().join(page)).unwrap();
        if text.contains("```console") {
            found.insert(page.to_owned());
        }
    }
    let run: BTreeSet<String> = PAGES.iter().map(|page| (*page).to_owned()).collect();
    assert_eq!(found, run);
}

#[test]
fn commands_are_read_as_printed() {
    let page = "```sh\n$ no\n```\n  ```console\n  $ a \\\n      b\n  out\n\
                \x20 $ cat <<'END' >f\n  # c\n  END\n  ```\n";
    let expected = [
        Printed { line: 5, words: "a \\\n    b".to_owned(), shows: vec!["out".to_owned()] },
        Printed { line: 8, words: "cat <<'END' >f\n# c\nEND".to_owned(), shows: vec![] },
    ];
    assert_eq!(commands(page), expected);
}

#[test]
fn lines_are_compared_but_for_their_numbers() {
    let same = |shown: &[&str], printed: &[&str]| same_lines(shown, printed);
    assert!(same(&["vm1  1.5 Gbit/s", "…", "end"], &["vm1 20.07 Gbit/s", "a", "b", "end"]));
    assert!(same(&["up … since … ms"], &["up for 3 s since 4 ms"]));
    assert!(!same(&["vm1 up"], &["vm2 up"]));
    assert!(!same(&["a"], &["a", "b"]));
    assert!(!same(&["a", "b"], &["a"]));
}
