//! Tests the Linux driver with a runner that returns prepared answers, including invalid answers.

use std::collections::VecDeque;
use std::sync::Mutex;

use penstock_units::BitsPerSecond;

use super::*;

/// Runner that returns prepared answers in order, for any program.
#[derive(Debug)]
struct Script(Mutex<VecDeque<Result<String, RunError>>>);

#[derive(Debug)]
struct Free;

impl Hold for Free {}

#[async_trait]
impl Runner for Script {
    async fn run(&self, _: &Run) -> Result<String, RunError> {
        let next = self.0.lock().expect("one thread").pop_front();
        next.unwrap_or_else(|| Err(RunError::Failed("asked too often".to_owned())))
    }

    async fn hold(&self) -> Result<Box<dyn Hold>, RunError> {
        Ok(Box::new(Free))
    }
}

const LO: &str = r#"[{"ifname":"lo","ifalias":"penstock 7.3"}]"#;
const QDISC: &str = r#"[{"kind":"noqueue","handle":"0:","dev":"e0","root":true}]"#;

fn port(name: &str) -> PortInfo {
    PortInfo { name: name.to_owned(), rate: BitsPerSecond(1_000_000_000) }
}

fn switch(answers: &[&str]) -> TcSwitch {
    let answers = answers.iter().map(|text| Ok((*text).to_owned())).collect();
    let runner = Arc::new(Script(Mutex::new(answers)));
    TcSwitch::new("leaf1", &[port("e0")], Settings::default(), runner).expect("good settings")
}

#[tokio::test]
async fn rubbish_is_told_with_the_switchs_name() {
    let cases: [&[&str]; 8] = [
        &["not json"],
        &["[]"],
        &[r#"[{"ifalias":7}]"#],
        &[LO, "{}"],
        &[LO, r#"[{"kind":"htb","handle":"9e50:","dev":"e0","root":true}]"#, "[] []"],
        &[
            LO,
            r#"[{"kind":"htb","handle":"9e50:","dev":"e0","root":true}]"#,
            "[]",
            "class htb 9e50:11 x",
        ],
        &[LO, "[]"],
        &[r#"[{"ifalias":"somebody's own words"}]"#],
    ];
    for answers in cases {
        let error = switch(answers).read_back().await.expect_err("rubbish").to_string();
        assert!(error.starts_with("switch leaf1: ") && !error.contains("too often"), "{error}");
    }
}

#[tokio::test]
async fn a_late_change_is_refused_before_any_command() {
    let told = Stamp { epoch: 7, generation: 2 };
    let error = switch(&[LO, QDISC]).apply(told, &[]).await.expect_err("late");
    assert!(matches!(error, DriverError::Fenced { .. }), "{error}");
}

#[tokio::test]
async fn a_refusal_names_the_line() {
    let refused = "Error: Invalid handle.\nCommand failed -:2".to_owned();
    let answers =
        VecDeque::from([Ok(LO.to_owned()), Ok(QDISC.to_owned()), Err(RunError::Failed(refused))]);
    let runner = Arc::new(Script(Mutex::new(answers)));
    let switch = TcSwitch::new("leaf1", &[port("e0")], Settings::default(), runner).expect("good");
    let error = switch.apply(Stamp { epoch: 8, generation: 1 }, &[]).await.expect_err("refused");
    let text = error.to_string();
    assert!(text.contains("tc class replace dev e0 parent 9e50: classid 9e50:1 "), "{text}");
}

#[test]
fn names_that_are_more_than_a_word_of_a_batch_are_refused() {
    let runner = || Arc::new(Script(Mutex::new(VecDeque::new())));
    for name in ["", "e0 root", "e0\nqdisc del dev e1 root", "a-name-too-long-for-it", "\"", "é"] {
        let made = TcSwitch::new("leaf1", &[port(name)], Settings::default(), runner());
        assert!(made.is_err(), "{name:?}");
    }
    let none = Settings { queues: 17, ..Settings::default() };
    assert!(TcSwitch::new("leaf1", &[], none, runner()).is_err());
    let still = PortInfo { name: "e0".into(), rate: BitsPerSecond(0) };
    assert!(TcSwitch::new("leaf1", &[still], Settings::default(), runner()).is_err());
}
