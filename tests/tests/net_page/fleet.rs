//! A mock fleet of a hundred hosts and an interface of a thousand QPs, and a real rollout.

use dcqcn_tests::browser::Browser;
use dcqcn_tests::fleet::MockDaemon;
use dcqcn_tests::prelude::*;

use super::fixture::{Page, TOKEN, check_accessibility, picture};

/// Time of watching the browser for long tasks, and attempts, as the machine has other load.
const WATCH_TIME: Duration = Duration::from_secs(8);
const TRIES: usize = 5;

/// A hundred hosts, as agents would report them, in their `round`.
fn reports(round: u64) -> Vec<(String, String)> {
    let report = |host: u64| {
        let wave = |by: u64| (round * 37 + host * by) % 1_000;
        let rates = json!({
            "window_ms": 60_000, "data_packets": 1_000_000, "marks": wave(13), "cnps": wave(7), "drops": wave(3) / 100,
            "rdma_errors": 0, "queue": wave(11) / 10,
        });
        let report = json!({
            "tried": { "version": 1, "error": null }, "interfaces": ["eth0", "eth1"], "failing": [], "rates": rates,
        });
        (format!("/dcqcn/hosts/h{host:03}/report"), report.to_string())
    };
    (0..100).map(report).collect()
}

/// Fails unless the browser runs for that time without a task of more than 50 ms.
fn check_no_long_task(browser: &mut Browser, what: &str) -> Result<()> {
    browser.eval(
        "window.long = []; new PerformanceObserver((list) => window.long.push(...list.getEntries().map((entry) => \
         Math.round(entry.duration)))).observe({ type: 'longtask' }); null",
    )?;
    let mut seen = Vec::new();
    for _ in 0..TRIES {
        browser.eval("window.long.length = 0; null")?;
        thread::sleep(WATCH_TIME);
        let long = browser.eval("window.long")?.to_string();
        eprintln!("{what}: tasks of more than 50 ms in {} s: {long}", WATCH_TIME.as_secs());
        if long == "[]" {
            return Ok(());
        }
        seen.push(long);
    }
    bail!("{what}: long tasks each time: {}", seen.join("; "))
}

#[test]
fn page_handles_100_hosts_1000_qps() -> Result<()> {
    let test = test_name!();
    require_installed!(Browser, Etcd);
    let (dir, etcd) = (tempfile::tempdir()?, Etcd::start(1, &[])?);
    let control = dir.path().join("control").display().to_string();
    let _daemon = MockDaemon::listen(&control)?;
    let member = |host: u64| (format!("/dcqcn/hosts/h{host:03}/member"), json!({ "labels": {} }).to_string());
    etcd.put(&(0..100).map(member).collect::<Vec<_>>())?;
    etcd.put(&reports(0))?;
    let page = Page::start(&["--fleet", "--etcd", &etcd.endpoints(), "--control", &control])?;
    let mut round = 0;
    let report = || -> Result<()> {
        round += 1;
        etcd.put(&reports(round))?;
        thread::sleep(Duration::from_secs(2));
        Ok(())
    };
    while_repeating([report], || watch(test, &page))
}

fn watch(test: &str, page: &Page) -> Result<()> {
    let mut browser = Browser::start()?;
    browser.set_viewport(1_200, 1_000, "light")?;
    browser.open(&format!("{}#/fleet", page.url))?;
    browser.wait("document.querySelectorAll('tbody tr').length >= 100")?;
    browser.wait(
        "document.getElementById('counts').textContent === '100 hosts, 100 healthy, 0 failing, 0 away.'",
    )?;
    check_no_long_task(&mut browser, "a hundred hosts")?;
    check_accessibility(test, &mut browser, "a hundred hosts")?;

    browser.eval("location.hash = '#/interface/eth1'; null")?;
    browser.wait("document.getElementById('rates')?.chart.lines.length === 8")?;
    browser.wait("document.querySelectorAll('.parameter').length > 100")?;
    check_no_long_task(&mut browser, "a thousand queue pairs")?;
    ensure!(
        browser.eval("document.querySelectorAll('main .wide')[0].querySelectorAll('tbody tr').length")? == 16
    );

    browser.eval("location.hash = '#/host/h042'; null")?;
    browser.wait("document.getElementById('host-marks')?.chart.plot.data[0].length > 3")?;
    let marks = browser.eval("document.getElementById('host-marks').chart.plot.data[1]")?;
    let is_low = |marks: &Vec<Value>| marks.iter().all(|value| value.as_f64() < Some(1_000.0));
    ensure!(marks.as_array().is_some_and(is_low), "{marks}");
    check_accessibility(test, &mut browser, "a host")?;
    ensure!(browser.complaints.is_empty(), "{:?}", browser.complaints);
    Ok(())
}

#[test]
fn idle_host_is_not_healthy_on_page() -> Result<()> {
    require_installed!(Browser, Etcd);
    let etcd = Etcd::start(1, &[])?;
    let report = |host: &str, interfaces: &[&str], applying: Option<u64>| {
        let report = json!({
            "tried": { "version": 1, "error": null }, "interfaces": interfaces, "failing": [], "applying": applying,
        });
        (format!("/dcqcn/hosts/{host}/report"), report.to_string())
    };
    let member = |host: &str| (format!("/dcqcn/hosts/{host}/member"), json!({ "labels": {} }).to_string());
    etcd.put(&["h1", "h2", "h3"].map(member))?;
    etcd.put(&[report("h1", &["eth0"], None), report("h2", &[], None), report("h3", &["eth0"], Some(2))])?;
    let page = Page::start(&["--fleet", "--etcd", &etcd.endpoints()])?;
    let mut browser = Browser::start()?;
    browser.open(&format!("{}#/fleet", page.url))?;
    let counts = "3 hosts, 2 healthy, 0 failing, 0 away, 1 without interfaces.";
    browser.wait(&format!("document.getElementById('counts')?.textContent === '{counts}'"))?;
    let states =
        browser.eval("[...document.querySelectorAll('td.text')].map((cell) => cell.innerText).join('|')")?;
    ensure!(states == "healthy|manages no interface|applying version 2", "{states}");
    Ok(())
}

#[test]
fn missing_data_is_unknown_on_page() -> Result<()> {
    require_installed!(Browser, Etcd);
    let (dir, etcd) = (tempfile::tempdir()?, Etcd::start(1, &[])?);
    let control = dir.path().join("control").display().to_string();
    let page = Page::start(&["--fleet", "--etcd", &etcd.endpoints(), "--control", &control])?;
    let mut browser = Browser::start()?;
    browser.open(&page.url)?;
    browser.wait("document.getElementById('trouble').textContent.includes('cannot reach the daemon')")?;
    browser.wait("document.getElementById('link').textContent === 'no data'")?;
    let text = browser.eval("document.querySelector('main').innerText")?.to_string();
    ensure!(text.matches("Unknown: no data yet.").count() == 2 && !text.contains("No "), "{text}");
    browser.eval("location.hash = '#/host/h9'; null")?;
    browser.wait("document.getElementById('state')?.textContent === 'The fleet has no host h9.'")?;
    browser.wait("document.getElementById('link').textContent === 'live'")?;
    ensure!(browser.complaints.is_empty(), "{:?}", browser.complaints);
    let _daemon = MockDaemon::listen(control)?;
    browser.eval("location.hash = '#/interface/eth9'; null")?;
    let none = "This host has no attached interface eth9.";
    browser.wait(&format!("document.getElementById('state')?.textContent === '{none}'"))?;
    browser.wait("document.getElementById('link').textContent === 'live'")?;
    Ok(())
}

#[test]
fn rollout_shown_and_aborted_on_page() -> Result<()> {
    let test = test_name!();
    require_installed!(Browser, Etcd);
    let fixture = FleetFixture::new(1, 4)?;
    let dir = tempfile::tempdir()?;
    let token = super::fixture::token(dir.path())?;
    let endpoints = fixture.etcd.endpoints();
    let control = dir.path().join("control").display().to_string();
    let _daemon = MockDaemon::listen(&control)?;
    let page =
        Page::start(&["--fleet", "--etcd", &endpoints, "--control", &control, "--allow-write", &token])?;
    let slow = "canary = 1\nwave = 1\nmax_unavailable = 1\nsoak = '10m'\npatience = '20s'";
    fixture.text(&["apply", &fixture.file(slow, "rpg_gd = 12")?, "--why", "CHG-1"])?;
    let _coordinator = fixture.coordinate()?;
    abort(test, &page, &fixture, dir.path())
}

fn abort(test: &str, page: &Page, fixture: &FleetFixture, dir: &Path) -> Result<()> {
    let mut browser = Browser::start()?;
    browser.set_viewport(1_200, 1_000, "light")?;
    browser.open(&format!("{}#/fleet", page.url))?;
    browser
        .wait("document.getElementById('rollout').textContent.includes('canaries, 1 of 4 hosts changed')")?;
    browser.wait("document.querySelector('main').innerText.includes('CHG-1')")?;
    check_accessibility(test, &mut browser, "a rollout")?;
    browser.picture(&picture(dir, "page-fleet.png"))?;
    browser.eval("document.getElementById('pause').click(); null")?;
    browser.wait("document.getElementById('token')")?;
    browser.type_text(TOKEN)?;
    browser.press("Enter", 13)?;
    browser.wait("document.getElementById('rollout').textContent.includes('paused')")?;
    browser.eval("document.getElementById('abort').click(); null")?;
    browser.wait("document.getElementById('rollout').textContent.includes('rolled back: aborted by')")?;
    let status = fixture.status()?;
    let rollout_status = status["rollout"]["status"].as_str().context("no status")?.to_owned();
    ensure!(rollout_status.contains("by the page: requested on the page"), "{rollout_status}");
    fixture.wait_for_daemons("every host is rolled back", |_, daemon| daemon.name().is_none())?;
    // Neither a daemon nor an etcd responds, which the page reports.
    let none = dir.join("none").display().to_string();
    let alone = Page::start(&["--fleet", "--etcd", "http://127.0.0.1:1", "--control", &none])?;
    browser.open(&alone.url)?;
    browser.wait("document.getElementById('trouble').textContent.includes('cannot reach the daemon')")?;
    browser.wait("document.getElementById('trouble').textContent.includes('etcd: ')")?;
    ensure!(browser.complaints.is_empty(), "{:?}", browser.complaints);
    Ok(())
}
