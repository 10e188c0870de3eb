//! Output of `ping`: round trips, and pings without an answer.

use anyhow::Context as _;

/// Time in ms that counts as the round trip of a ping without an answer.
const LOST_MS: f64 = 1_000.0;

/// Returns the words of a `ping` command that pings `to` every `gap` seconds, for `secs` seconds.
pub(super) fn words(to: &str, secs: f64, gap: f64) -> Vec<String> {
    let (count, gap) = (format!("{:.0}", (secs / gap).ceil()), format!("{gap:.4}"));
    ["-n", "-c", &count, "-i", &gap, "-W", "1", to].map(str::to_owned).to_vec()
}

/// Returns the round trips in ms from the output of `ping`. A ping without an answer counts
/// [`LOST_MS`].
///
/// # Errors
/// Returns an error if the output does not say how many pings were sent.
pub(super) fn round_trips(told: &str) -> anyhow::Result<Vec<f64>> {
    let times = told.split_whitespace().filter_map(|word| word.strip_prefix("time="));
    let mut times: Vec<f64> = times.filter_map(|time| time.parse().ok()).collect();
    let line = told.lines().find(|line| line.contains("packets transmitted"));
    let sent = line.and_then(|line| line.split_whitespace().next()?.parse::<usize>().ok());
    let sent = sent.with_context(|| format!("ping said:\n{told}"))?;
    let answered = times.len();
    times.extend((answered..sent).map(|_| LOST_MS));
    Ok(times)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pings_without_an_answer_are_the_slowest() {
        let told = "PING 10.0.2.1 (10.0.2.1) 56(84) bytes of data.\n\
                    64 bytes from 10.0.2.1: icmp_seq=1 ttl=64 time=0.151 ms\n\
                    64 bytes from 10.0.2.1: icmp_seq=3 ttl=64 time=12 ms\n\n\
                    --- 10.0.2.1 ping statistics ---\n\
                    3 packets transmitted, 2 received, 33.3% packet loss, time 10ms\n";
        assert_eq!(round_trips(told).unwrap(), [0.151, 12.0, LOST_MS]);
        assert!(round_trips("ping: unknown host").is_err());
    }

    #[test]
    fn a_gap_has_a_tenth_of_a_millisecond() {
        let words = words("10.0.2.1", 0.05, 0.005_04);
        assert_eq!(words.join(" "), "-n -c 10 -i 0.0050 -W 1 10.0.2.1");
    }
}
