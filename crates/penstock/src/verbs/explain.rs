//! `penstock explain` prints the limit of a port's rate, with evidence and remedy.

use std::path::Path;
use std::process::ExitCode;

use anyhow::Result;
use penstock_control::api::{self, Concerned, Explanation, Limit};
use penstock_vcpu_host::state::VmState;

use super::{print, print_json, vcpu};
use crate::cli::ExplainArgs;
use crate::client::{connect, refused, timed};
use crate::table::{
    Table, bits_per_second, cycle_rate, frames_per_second, or_dash, percent, printable, to_f64,
};

/// # Errors
/// Returns an error if the daemon cannot be reached or refuses the request, or the port does not
/// exist.
pub async fn run(socket: &Path, args: ExplainArgs) -> Result<ExitCode> {
    let mut client = connect(socket).await?;
    let request = api::ExplainRequest { port: args.port, seconds: args.over };
    let answer = client.explain(timed(request)).await.map_err(refused)?.into_inner();
    let vcpus =
        (!answer.vm.is_empty()).then(|| vcpu::of_vm(Path::new(&answer.vcpu_dir), &answer.vm));
    if args.json.json {
        let mut value = serde_json::to_value(&answer)?;
        value["vcpu"] = match &vcpus {
            Some(Ok((vm, verdict))) => serde_json::json!({ "vm": vm, "verdict": verdict }),
            Some(Err(why)) => serde_json::json!({ "unknown": why }),
            None => serde_json::Value::Null,
        };
        print_json(&value)?;
    } else {
        print(&format!(
            "{}{}",
            text(&answer),
            vcpus.map(|it| told(&answer.vm, it)).unwrap_or_default()
        ))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns the state of the vCPUs of the port's VM as text, or the reason why the state is unknown.
fn told(name: &str, vcpus: Result<(VmState, String), String>) -> String {
    let name = printable(name);
    match vcpus {
        Ok((vm, verdict)) => {
            let table = vcpu::table(std::slice::from_ref(&vm));
            format!("\nvCPUs of VM {name}: {}\n{table}", printable(&verdict))
        }
        Err(why) => format!("\nvCPUs of VM {name}: {}\n", printable(&why)),
    }
}

fn permille(value: u64) -> String {
    percent(to_f64(value) / 1e3)
}

/// Returns the limit of the port's rate as a phrase.
fn verdict(limit: &Limit) -> String {
    match limit {
        Limit::Attachment => "passes no frames".to_owned(),
        Limit::OwnRate => "limited by the port's own rate".to_owned(),
        Limit::Link(port) if port.is_empty() => {
            "limited by the port's share of a shared output".to_owned()
        }
        Limit::Link(port) => format!("limited by the link of {}", printable(port)),
        Limit::Destination(port) if port.is_empty() => "limited by a receiver".to_owned(),
        Limit::Destination(port) => format!("limited by the receiver {}", printable(port)),
        Limit::Entitlement => "limited by the port's own cycles".to_owned(),
        Limit::Neighbours => "limited by other ports on the same core".to_owned(),
        Limit::Core => "limited by the worker's core".to_owned(),
        Limit::Nothing => "not limited by this host".to_owned(),
    }
}

/// Returns the text that `penstock explain` prints: first the answer, then the evidence.
fn text(answer: &Explanation) -> String {
    let first = match answer.verdict.as_str() {
        "" => format!(": {}", verdict(&answer.found())),
        verdict => format!(" {}", printable(verdict)),
    };
    let mut text = format!(
        "{}{first}\n  {}\n{}  remedy: {}\n{}\nover the last {:.1} s:\n",
        named(answer),
        printable(&answer.why),
        answer.since_ms.map_or_else(String::new, since),
        printable(&answer.remedy),
        concerned(answer),
        to_f64(answer.window_ms) / 1e3
    );
    let mut line = |name: &str, value: String| text.push_str(&format!("  {name:<10} {value}\n"));
    line(
        "sends",
        format!(
            "{}, {}, {} of frames dropped, {} of batches full",
            frames_per_second(to_f64(answer.sends_pps)),
            bits_per_second(to_f64(answer.sends_bps)),
            permille(answer.dropped_permille),
            permille(answer.full_permille)
        ),
    );
    let entitled = match answer.entitled {
        0 => "purchased none".to_owned(),
        bought => format!("entitled to {}", cycle_rate(to_f64(bought))),
    };
    line(
        "cycles",
        format!(
            "uses {}, {entitled}; waited for cycles {} of the time",
            cycle_rate(to_f64(answer.used)),
            permille(answer.throttled_permille)
        ),
    );
    line(
        "contract",
        format!(
            "policy {}, class {}, weight {}",
            or_dash(&answer.policy),
            answer.priority,
            answer.weight
        ),
    );
    if !answer.profile.is_empty() {
        line("profile", printable(&answer.profile));
    }
    if !answer.latency.is_empty() {
        line("latency", printable(&answer.latency));
    }
    line(
        "core",
        format!(
            "worker {}: busy {}, stolen {}",
            answer.worker,
            permille(answer.busy_permille),
            permille(answer.stolen_permille)
        ),
    );
    for warning in &answer.warnings {
        line("warning", printable(warning));
    }
    text.push_str(&consumers(answer));
    text
}

/// Returns the line that says how long the port has got less than it bought.
fn since(ms: u64) -> String {
    let seconds = ms / 1_000;
    let time = match seconds {
        0..120 => format!("{seconds} s"),
        120..7_200 => format!("{} min", seconds / 60),
        _ => format!("{} h", seconds / 3_600),
    };
    format!("  duration: {time}\n")
}

/// Returns a line for each other port that gets less than it bought.
/// The port's name, followed by its labels.
fn named(answer: &Explanation) -> String {
    let labels = super::port::labels(&answer.labels);
    let labels = if labels.is_empty() { labels } else { format!(" ({})", printable(&labels)) };
    format!("{}{labels}", printable(&answer.port))
}

fn concerned(answer: &Explanation) -> String {
    let line = |port: &Concerned| {
        format!(
            "  also: {} gets {} of the {} it bought\n",
            printable(&port.port),
            permille(port.got_permille),
            printable(&port.bought)
        )
    };
    answer.concerned.iter().map(line).collect()
}

fn consumers(answer: &Explanation) -> String {
    if answer.consumers.is_empty() {
        return String::new();
    }
    let mut table = Table::new("PORTS ON CORE|>SHARE|>CYCLES|>ENTITLED|>CLASS|>RATE|>");
    for consumer in &answer.consumers {
        let entitled = match consumer.entitled {
            0 => "-".to_owned(),
            bought => cycle_rate(to_f64(bought)),
        };
        table.row([
            consumer.port.clone(),
            permille(consumer.share_permille),
            cycle_rate(to_f64(consumer.used)),
            entitled,
            consumer.priority.to_string(),
            frames_per_second(to_f64(consumer.pps)),
            bits_per_second(to_f64(consumer.bps)),
        ]);
    }
    format!("\n{}", table.render())
}

#[cfg(test)]
mod tests {
    use super::*;
    use penstock_control::api::Consumer;

    fn answer() -> Explanation {
        Explanation {
            port: "vm1".into(),
            window_ms: 3_000,
            limit: "link".into(),
            limit_port: "up".into(),
            why: "the link of up".into(),
            remedy: "a faster one".into(),
            sends_pps: 1_000_000,
            sends_bps: 4_000_000_000,
            dropped_permille: 125,
            policy: "cycles-strict".into(),
            entitled: 200_000_000,
            used: 201_000_000,
            priority: 1,
            weight: 2,
            busy_permille: 995,
            bound_us: Some(120),
            latency: "at most 120 us to the end of its batch".into(),
            consumers: vec![Consumer {
                port: "vm2".into(),
                used: 1_500_000_000,
                share_permille: 750,
                priority: 8,
                pps: 9_000_000,
                bps: 4_320_000_000,
                ..Consumer::default()
            }],
            ..Explanation::default()
        }
    }

    #[test]
    fn the_answer_stands_first_and_what_it_rests_on_below() {
        assert_eq!(
            text(&answer()),
            "\
vm1: limited by the link of up
  the link of up
  remedy: a faster one

over the last 3.0 s:
  sends      1.00 Mpps, 4.00 Gbit/s, 12.5 % of frames dropped, 0.0 % of batches full
  cycles     uses 201 Mcycles/s, entitled to 200 Mcycles/s; waited for cycles 0.0 % of the time
  contract   policy cycles-strict, class 1, weight 2
  latency    at most 120 us to the end of its batch
  core       worker 0: busy 99.5 %, stolen 0.0 %

PORTS ON CORE   SHARE          CYCLES  ENTITLED  CLASS       RATE
vm2            75.0 %  1.50 Gcycles/s         -      8  9.00 Mpps  4.32 Gbit/s
"
        );
    }

    #[test]
    fn a_port_with_a_contract_reads_what_it_gets_of_it() {
        let answer = Explanation {
            verdict: "gets 62.0 % of the 4.00 Gbit/s it bought, because its frames are short"
                .into(),
            bought: "4.00 Gbit/s".into(),
            got_permille: Some(620),
            since_ms: Some(95_000),
            concerned: vec![Concerned {
                port: "vm9".into(),
                bought: "1.50 Mpps".into(),
                got_permille: 801,
            }],
            ..answer()
        };
        assert!(
            text(&answer).starts_with(
                "\
vm1 gets 62.0 % of the 4.00 Gbit/s it bought, because its frames are short
  the link of up
  duration: 95 s
  remedy: a faster one
  also: vm9 gets 80.1 % of the 1.50 Mpps it bought

over the last 3.0 s:
"
            ),
            "{}",
            text(&answer)
        );
    }

    #[test]
    fn programs_find_the_limit_by_name() {
        let value = serde_json::to_value(answer()).unwrap();
        assert_eq!((&value["limit"], &value["limit_port"]), (&"link".into(), &"up".into()));
        assert_eq!(value["consumers"][0]["port"], "vm2");
    }
}
