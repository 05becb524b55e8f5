//! One host without etcd: charts, changes, permissions, and accessibility.

use dcqcn_control_api::{Applied, Apply, Override, Verb};
use dcqcn_tests::browser::Browser;
use dcqcn_tests::prelude::*;

use super::fixture::{Page, PageFixture, TOKEN, check_accessibility, picture};

/// The last values of a chart, as drawn: times and lines.
fn drawn_points(browser: &mut Browser, chart: &str) -> Result<Vec<Value>> {
    let data = browser.eval(&format!("document.getElementById('{chart}').chart.plot.data"))?;
    Ok(data.as_array().context("no data")?.clone())
}

fn last(values: &Value) -> Option<f64> {
    values.as_array()?.iter().rev().find_map(Value::as_f64)
}

#[test]
fn drawn_values_match_kernel() -> Result<()> {
    let test = test_name!();
    require!();
    require_installed!(Browser);
    let fixture = PageFixture::new("page")?;
    let page = Page::start(&["--control", &fixture.daemon.socket()])?;
    let mut browser = Browser::start()?;
    browser.set_viewport(1_200, 1_000, "light")?;
    browser.open(&page.url)?;
    // From the overview to the interface, by keys alone.
    browser.wait("document.querySelector('tbody a')")?;
    check_accessibility(test, &mut browser, "overview")?;
    browser.eval("document.querySelector('tbody a').focus()")?;
    browser.press("Enter", 13)?;
    browser.wait("document.getElementById('depth-3')?.chart.plot.data[0].length > 5")?;
    browser.wait("document.querySelectorAll('.parameter').length > 100")?;

    let depth = drawn_points(&mut browser, "depth-3")?;
    let config = fixture.pair.a.attachment("a0")?.maps.params()?.config;
    assert_eq!(last(&depth[2]), Some(config.wred[3].kmin_bytes as f64));
    assert_eq!(last(&depth[3]), Some(config.wred[3].kmax_bytes as f64));
    // The sum of a counter's plotted rates equals the kernel's count in the same time.
    let cnps = || fixture.pair.a.count("a0", Hook::Ingress, Stat::RpCnpHandled);
    let before = cnps()?;
    let from = drawn_points(&mut browser, "marks")?[0].as_array().map_or(0, Vec::len);
    browser.wait(&format!("document.getElementById('marks').chart.plot.data[0].length >= {}", from + 8))?;
    let (marks, after) = (drawn_points(&mut browser, "marks")?, cnps()?);
    let values = |line: usize| marks[line].as_array().map(Vec::as_slice).unwrap_or_default();
    let seconds = values(0)
        .windows(2)
        .map(|two| two[1].as_f64().unwrap_or_default() - two[0].as_f64().unwrap_or_default());
    let handled = values(3).iter().skip(1).map(|value| value.as_f64().unwrap_or_default());
    let sum: f64 = handled.zip(seconds).skip(from - 1).map(|(rate, seconds)| rate * seconds).sum();
    let counted = (after - before) as f64;
    // Each end is sampled up to a second earlier or later.
    assert!((sum - counted).abs() <= counted * 0.4 && counted > 10.0, "drawn {sum}, counted {counted}");
    assert!(values(1).iter().any(|value| value.as_f64() > Some(0.0)), "no marks are drawn");

    // Six QPs, each at the rate of its rate machine.
    let rates = browser.eval("document.getElementById('rates').chart.lines.map((line) => line.label)")?;
    assert_eq!(rates.as_array().map(Vec::len), Some(6), "{rates}");
    assert!(rates.to_string().contains("10.0.0.2 0x11"), "{rates}");
    let line = fixture.pair.a.attachment("a0")?.maps.params()?.rp.line_rate_bps as f64;
    for values in drawn_points(&mut browser, "rates")?.iter().skip(1) {
        let rate = last(values).context("a queue pair without a rate")?;
        assert!(rate > 0.0 && rate <= line, "{rate}");
    }
    // The pixel where Kmin is has the colour of Kmin.
    let has_colour = browser.eval(
        "(() => { const { plot } = document.getElementById('depth-3').chart; const [t, , kmin] = plot.data; \
         const y = Math.round(plot.valToPos(kmin.at(-1), 'y', true)); const x = Math.round(plot.valToPos(t.at(-1), 'x', true)); \
         const { data } = plot.ctx.getImageData(x - 200, y - 2, 200, 5); \
         const is = (at) => data[at] < 60 && data[at + 1] > 90 && data[at + 2] < 100 && data[at + 3] > 200; \
         let count = 0; for (let at = 0; at < data.length; at += 4) if (is(at)) count += 1; \
         return kmin.length > 1 ? count : -1; })()",
    )?;
    assert!(has_colour.as_u64() > Some(0), "{has_colour}");

    check_accessibility(test, &mut browser, "light")?;
    assert!(
        browser.eval("document.querySelectorAll('#parameters ~ .groups button:not([hidden])').length")? == 0
    );
    browser.picture(&picture(fixture.daemon.dir.path(), "page-light.png"))?;
    browser.set_viewport(1_200, 1_000, "dark")?;
    check_accessibility(test, &mut browser, "dark")?;
    browser.picture(&picture(fixture.daemon.dir.path(), "page-dark.png"))?;
    browser.set_viewport(390, 844, "light")?;
    browser.wait("document.getElementById('depth-3').chart.plot.width < 390")?;
    let wide = browser.eval("document.documentElement.scrollWidth")?;
    assert!(wide.as_u64() <= Some(390), "{wide} pixels wide on a phone");
    check_accessibility(test, &mut browser, "phone")?;
    browser.picture(&picture(fixture.daemon.dir.path(), "page-phone.png"))?;
    assert_eq!(browser.complaints, [] as [String; 0]);
    Ok(())
}

#[test]
fn page_change_reverts_unless_confirmed() -> Result<()> {
    let test = test_name!();
    require!();
    require_installed!(Browser);
    let fixture = PageFixture::new("page-write")?;
    let page = Page::start(&["--control", &fixture.daemon.socket(), "--allow-write", &fixture.token()?])?;
    let mut browser = Browser::start()?;
    browser.set_viewport(1_200, 1_000, "light")?;
    browser.open(&format!("{}#/interface/a0", page.url))?;
    let button = "document.querySelector('[aria-label=\"Change wred.3.kmin\"]')";
    browser.wait(&format!("{button} && !{button}.hidden"))?;
    // Parameters that may not be set remotely have no button.
    browser.wait("document.querySelector('[aria-label=\"Change cnp_dscp\"]').hidden")?;
    let change = |browser: &mut Browser, value: &str, token: &str| -> Result<()> {
        browser.eval(&format!("{button}.focus()"))?;
        browser.press("Enter", 13)?;
        browser.wait("document.activeElement.id === 'change-value'")?;
        browser.type_text(value)?;
        browser.press("Tab", 9)?;
        browser.eval("document.getElementById('change-token').value = ''")?;
        browser.type_text(token)?;
        browser.eval("document.getElementById('change-by').value = 'ada'")?;
        browser.press("Enter", 13)
    };
    let wrong = |browser: &mut Browser, text: &str| {
        browser.wait(&format!("document.querySelector('.wrong').textContent.includes('{text}')"))?;
        browser.press("Escape", 27)
    };
    let has = |bytes: u64| wait_value(|| fixture.kmin(), |kmin| *kmin == bytes);
    change(&mut browser, "150KB", "0000000000000000")?;
    wrong(&mut browser, "wrong token")?;
    change(&mut browser, "10KB", TOKEN)?;
    wrong(&mut browser, "50KB to 250KB")?;
    assert_eq!(fixture.kmin()?, 100_000);

    change(&mut browser, "150KB", TOKEN)?;
    browser.wait("document.getElementById('left')")?;
    has(150_000)?;
    check_accessibility(test, &mut browser, "a change that waits")?;
    browser.wait("document.getElementById('depth-3')?.chart.plot.data[2].at(-1) === 150000")?;
    browser.wait("document.getElementById('depth-3')?.chart.changes.length > 0")?;
    browser.eval("document.getElementById('undo').click()")?;
    has(100_000)?;
    browser.wait("document.getElementById('trial').hidden")?;

    change(&mut browser, "200KB", TOKEN)?;
    browser.wait("document.getElementById('left')")?;
    browser.eval("document.getElementById('keep').focus()")?;
    browser.press("Enter", 13)?;
    browser.wait("document.getElementById('trial').hidden")?;
    has(200_000)?;
    browser.wait("document.getElementById('main').innerText.includes('100KB → 200KB')")?;
    // Another user changes it during the decision: this change is rejected, the other one stays.
    let control_client = fixture.daemon.client()?;
    let active: Option<Override> = control_client.request(Verb::Config {})?;
    let text = active.context("nothing is active")?.text.replace("200KB", "180KB");
    let theirs = || Apply {
        name: "theirs".into(),
        text: text.clone(),
        by: "bob".into(),
        why: String::new(),
        confirm_within_s: None,
        over: None,
    };
    browser.eval(&format!("{button}.focus()"))?;
    browser.press("Enter", 13)?;
    browser.wait("document.activeElement.id === 'change-value'")?;
    control_client.request::<Applied>(Verb::Apply(theirs()))?;
    browser.type_text("60KB")?;
    browser.press("Enter", 13)?;
    wrong(&mut browser, "but `theirs` is active now")?;
    has(180_000)?;
    // The browser's only errors are the rejected changes: a wrong token, and bounds.
    browser.complaints.retain(|complaint| !complaint.contains("/change"));
    assert_eq!(browser.complaints, [] as [String; 0]);
    let audit = fs::read_to_string(fixture.daemon.dir.path().join("audit.jsonl"))?;
    assert!(audit.contains("wred.3.kmin = 200KB on a0") && audit.contains("ada, by the page"), "{audit}");
    assert!(!audit.contains(TOKEN));
    Ok(())
}

#[test]
fn request_without_token_or_origin_rejected() -> Result<()> {
    require!();
    let fixture = PageFixture::new("page-guard")?;
    let readable = Page::start(&["--control", &fixture.daemon.socket()])?;
    let page = Page::start(&["--control", &fixture.daemon.socket(), "--allow-write", &fixture.token()?])?;
    let body =
        json!({ "interface": "a0", "key": "wred.3.kmin", "value": "150KB", "within_s": 60 }).to_string();
    let post = |page: &Page, more: &str| {
        let length = body.len();
        page.request(&format!(
            "POST /change HTTP/1.1\r\nConnection: close\r\nContent-Length: {length}\r\n{more}\r\n{body}"
        ))
    };
    let (host, kind, token) =
        ("Host: HOST\r\n", "Content-Type: application/json\r\n", format!("X-Dcqcn-Token: {TOKEN}\r\n"));
    for (page, more, status) in [
        (&readable, format!("{host}{kind}{token}"), "403"),
        (&page, format!("{host}{kind}"), "401"),
        (&page, format!("{host}{kind}X-Dcqcn-Token: {TOKEN}0\r\n"), "401"),
        (&page, format!("{host}{token}"), "403"),
        (&page, format!("{host}{token}Content-Type: text/plain\r\n"), "403"),
        (&page, format!("{host}{kind}{token}Origin: http://evil.example.com\r\n"), "403"),
        (&page, format!("{host}{kind}{token}Origin: null\r\n"), "403"),
        (&page, format!("Host: evil.example.com\r\n{kind}{token}"), "421"),
    ] {
        let answer = post(page, &more)?;
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{more}: {answer}");
        assert_eq!(fixture.kmin()?, 100_000, "{more}");
    }
    let foreign_host =
        readable.request("GET / HTTP/1.1\r\nConnection: close\r\nHost: evil.example.com\r\n\r\n")?;
    assert!(foreign_host.starts_with("HTTP/1.1 421 "), "{foreign_host}");
    let own = readable.request("GET / HTTP/1.1\r\nConnection: close\r\nHost: HOST\r\n\r\n")?;
    for word in ["default-src 'none'; script-src 'self'", "nosniff", "no-store", "frame-ancestors 'none'"] {
        assert!(own.contains(word), "{word}: {own}");
    }
    assert!(!own.contains("unsafe-inline") && !own.contains("access-control-allow"), "{own}");
    // An idle connection is closed to free its slot.
    let reply = readable.request("GET /icon.svg HTTP/1.1\r\nHost: HOST\r\n\r\n")?;
    assert!(reply.starts_with("HTTP/1.1 200 "), "{reply}");
    let answer = post(&page, &format!("{host}{kind}{token}"))?;
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    assert_eq!(fixture.kmin()?, 150_000);
    Ok(())
}
