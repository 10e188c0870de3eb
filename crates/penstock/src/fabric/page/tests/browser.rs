//! Tests the page in headless Chromium: its content, and that it loads nothing from other servers.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use tokio::process::Command;

use super::world::{AWAY, HOSTILE, World};

const LIMIT: Duration = Duration::from_secs(90);

fn chromium() -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    let names = ["chromium", "chromium-browser", "google-chrome"];
    let found = std::env::split_paths(&path)
        .flat_map(|folder| names.map(|name| folder.join(name)))
        .find(|program| program.exists());
    if found.is_none() {
        penstock_testing::skip("chromium is not installed (scripts/setup.sh test)");
    }
    found
}

/// Runs the browser with its own profile. Returns the browser's output and log.
async fn browse(program: &Path, args: &[String], url: &str) -> (String, String) {
    let profile = penstock_testing::temp_dir();
    let fixed = [
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--disable-background-networking",
        "--disable-component-update",
        "--no-first-run",
        "--no-proxy-server",
        "--hide-scrollbars",
        // No other name or address resolves.
        "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
        "--enable-logging=stderr",
        "--log-level=0",
        "--virtual-time-budget=6000",
    ];
    let mut command = Command::new(program);
    command.args(fixed).args(args).arg(format!("--user-data-dir={}", profile.display())).arg(url);
    command.stdin(Stdio::null()).kill_on_drop(true);
    let ran = tokio::time::timeout(LIMIT, command.output()).await;
    let out = ran.expect("chromium ends in time").unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (text(&out.stdout), text(&out.stderr))
}

/// Directory of the screenshots, which is `page` in cargo's target directory.
fn pictures() -> PathBuf {
    let program = std::env::current_exe().unwrap();
    let target = program.ancestors().nth(3).unwrap();
    let folder = target.join("page");
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

/// Lines of the log in which the page or its scripts report an error.
fn complaints(log: &str) -> Vec<&str> {
    log.lines().filter(|line| line.contains("CONSOLE")).collect()
}

/// Text of the HTML element with the given id, up to the next element that has an id.
fn part<'a>(dom: &'a str, id: &str) -> &'a str {
    let from = dom.find(&format!("id=\"{id}\"")).unwrap_or_else(|| panic!("no {id} in {dom}"));
    let rest = &dom[from + 4..];
    &rest[..rest.find(" id=\"").unwrap_or(rest.len())]
}

/// URLs that the page made Chromium load, from its network log. The list omits requests that
/// Chromium makes for its own purposes, which have no origin.
fn asked(net_log: &str) -> Vec<String> {
    let log: serde_json::Value = serde_json::from_str(net_log).unwrap();
    let events = log["events"].as_array().unwrap().iter().map(|event| &event["params"]);
    let by_page = events
        .filter(|event| event["initiator"].as_str().is_some_and(|from| from.starts_with("http")));
    by_page.filter_map(|event| Some(event["url"].as_str()?.to_owned())).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn operators_see_tenants_queues_and_reasons_and_nobody_else_is_asked() {
    let Some(program) = chromium() else { return };
    let world = World::start().await;
    world.intervals(6).await;
    let address = world.address;
    let url = format!("http://{address}/#tenant=idle&node={}", "rack-1");
    let net_log = pictures().join("page-net.json");
    let args = ["--dump-dom".to_owned(), format!("--log-net-log={}", net_log.display())];
    let (dom, log) = browse(&program, &args, &url).await;
    assert_eq!(complaints(&log), Vec::<&str>::new());
    assert!(dom.contains("data-ready=\"yes\""), "{dom}\n{log}");
    let rows = part(&dom, "rows");
    for tenant in ["web", "search", "batch-analytics", "video", "backup", "idle"] {
        assert!(rows.contains(&format!("data-tenant=\"{tenant}\"")), "{tenant}: {rows}");
    }
    assert!(rows.contains("own, DSCP ") && rows.contains("shared"), "{rows}");
    assert!(rows.contains("600 Mbit/s"), "a guarantee: {rows}");
    assert!(rows.matches("<polyline class=\"got\"").count() >= 6, "lines of the past: {rows}");
    assert!(part(&dom, "why").contains("all VMs of the tenant are on one server"), "{dom}");
    let node = part(&dom, "node");
    assert!(node.contains("shared by all others") && node.contains("DSCP "), "{node}");
    let tree = part(&dom, "tree");
    assert!(tree.matches("<line ").count() == 14 && tree.contains(AWAY), "{tree}");
    assert!(part(&dom, "refused").contains("science"), "{dom}");
    assert!(part(&dom, "events").contains("placed"), "{dom}");
    assert!(part(&dom, "state").contains("leads") && part(&dom, "state").contains("1 host away"));
    // A name with markup of a script is shown as text.
    assert!(
        !dom.contains(&format!(">{HOSTILE}")) && dom.contains("&lt;script&gt;document.title"),
        "{dom}"
    );
    assert!(dom.contains("<title>one · Penstock fabric</title>"), "{dom}");
    let own = format!("http://{address}/");
    let urls = asked(&std::fs::read_to_string(&net_log).unwrap());
    assert!(urls.iter().any(|url| *url == format!("{own}api/tenants")), "{urls:?}");
    let elsewhere: Vec<&String> = urls.iter().filter(|url| !url.starts_with(&own)).collect();
    assert!(elsewhere.is_empty(), "{elsewhere:?}");
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pictures_of_the_page_can_be_looked_at() {
    let Some(program) = chromium() else { return };
    let world = World::start().await;
    world.intervals(30).await;
    let folder = pictures();
    for (theme, scheme) in [("light", 1), ("dark", 0)] {
        for (width, height) in [(1280, 1500), (390, 3600)] {
            let file = folder.join(format!("page-{theme}-{width}.png"));
            let _ = std::fs::remove_file(&file);
            let args = [
                format!("--screenshot={}", file.display()),
                format!("--window-size={width},{height}"),
                format!("--blink-settings=preferredColorScheme={scheme}"),
            ];
            let url = format!("http://{}/#tenant=web&node=rack-1", world.address);
            let (_, log) = browse(&program, &args, &url).await;
            assert_eq!(complaints(&log), Vec::<&str>::new());
            let bytes = std::fs::metadata(&file).unwrap().len();
            assert!(bytes > 20_000, "{} is empty: {bytes} bytes", file.display());
        }
    }
    world.stop().await;
}
