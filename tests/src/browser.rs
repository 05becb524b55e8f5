//! A headless browser, driven through its DevTools protocol: two pipes with JSON objects.

use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};

use nix::sys::stat::Mode;
use nix::unistd::mkfifo;

use crate::prelude::*;

/// Time limit for an answer, and for a page to reach a state.
const TIMEOUT: Duration = Duration::from_secs(60);
const OPTIONS: [&str; 12] = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--force-color-profile=srgb",
    "--remote-debugging-pipe",
    "about:blank",
];

/// A browser with one page, closed on drop.
pub struct Browser {
    dir: TempDir,
    child: Running,
    to: File,
    from: Receiver<Value>,
    /// Number of the last request.
    id: u64,
    session: Option<String>,
    /// Errors of the page: console messages and uncaught exceptions.
    pub complaints: Vec<String>,
}

impl Browser {
    /// Whether a browser is installed; prints a message if not.
    pub fn available(test: &str) -> bool {
        let available = find_program("chromium").is_some();
        if !available {
            eprintln!("SKIPPED {test}: no chromium on PATH (Debian: chromium)");
        }
        available
    }

    pub fn start() -> Result<Self> {
        let dir = tempfile::tempdir()?;
        let pipe = |name: &str| -> Result<File> {
            let path = dir.path().join(name);
            mkfifo(&path, Mode::S_IRUSR | Mode::S_IWUSR)?;
            // Both are opened for reading and writing, so that neither side blocks.
            Ok(File::options().read(true).write(true).open(path)?)
        };
        let (to, answers) = (pipe("in")?, pipe("out")?);
        let mut command = Command::new("sh");
        command
            .args(["-c", "dir=$1; shift; exec chromium \"--user-data-dir=$dir/profile\" \"$@\" 3<\"$dir/in\" 4>\"$dir/out\"", "sh"])
            .arg(dir.path())
            .args(OPTIONS)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(File::create(dir.path().join("log"))?);
        let child = Running(command.spawn()?);
        let (say, from) = channel();
        thread::spawn(move || {
            for message in BufReader::new(answers).split(0).map_while(Result::ok) {
                let Ok(message) = serde_json::from_slice(&message) else { continue };
                if say.send(message).is_err() {
                    return;
                }
            }
        });
        let mut browser = Self { dir, child, to, from, id: 0, session: None, complaints: Vec::new() };
        let target = browser.call("Target.createTarget", json!({ "url": "about:blank" }))?;
        let attach = json!({ "targetId": target["targetId"], "flatten": true });
        let attached = browser.call("Target.attachToTarget", attach)?;
        browser.session = attached["sessionId"].as_str().map(str::to_owned);
        for domain in ["Page", "Runtime", "Log"] {
            browser.call(&format!("{domain}.enable"), json!({}))?;
        }
        Ok(browser)
    }

    pub fn call(&mut self, method: &str, params: Value) -> Result<Value> {
        self.id += 1;
        let mut question = json!({ "id": self.id, "method": method, "params": params });
        if let Some(session) = &self.session {
            question["sessionId"] = json!(session);
        }
        let mut text = serde_json::to_vec(&question)?;
        text.push(0);
        self.to.write_all(&text)?;
        let until = Instant::now() + TIMEOUT;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let message = match self.from.recv_timeout(left) {
                Ok(message) => message,
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
                    let log = fs::read_to_string(self.dir.path().join("log")).unwrap_or_default();
                    bail!("the browser does not answer {method}: {log}");
                }
            };
            if message["id"] == self.id {
                ensure!(message["error"].is_null(), "{method}: {}", message["error"]);
                return Ok(message["result"].clone());
            }
            self.listen(&message);
        }
    }

    fn listen(&mut self, message: &Value) {
        let params = &message["params"];
        let complaint = match message["method"].as_str() {
            Some("Runtime.exceptionThrown") => params["exceptionDetails"].to_string(),
            Some("Log.entryAdded") if params["entry"]["level"] == "error" => params["entry"].to_string(),
            Some("Runtime.consoleAPICalled") if params["type"] == "error" => params["args"].to_string(),
            _ => return,
        };
        self.complaints.push(complaint);
    }

    pub fn open(&mut self, url: &str) -> Result<()> {
        let opened = self.call("Page.navigate", json!({ "url": url }))?;
        ensure!(opened["errorText"].is_null(), "{url}: {}", opened["errorText"]);
        self.wait("document.readyState === 'complete'")
    }

    /// The value of an expression in the page; awaits a promise.
    pub fn eval(&mut self, expression: &str) -> Result<Value> {
        let params = json!({ "expression": expression, "awaitPromise": true, "returnByValue": true });
        let result = self.call("Runtime.evaluate", params)?;
        ensure!(result["exceptionDetails"].is_null(), "{expression}: {}", result["exceptionDetails"]);
        Ok(result["result"]["value"].clone())
    }

    /// Waits until an expression is true.
    pub fn wait(&mut self, expression: &str) -> Result<()> {
        let waited = wait_for(TIMEOUT, || {
            let is_so = self.eval(&format!("!!({expression})"))? == true;
            Ok(is_so.then_some(()).ok_or_else(|| format!("no {expression}")))
        });
        waited.or_else(|error| {
            let text = self.eval("document.body.innerText")?;
            bail!("{error:#}: {:?}; the page shows {text}", self.complaints)
        })
    }

    /// Sets the page's size in pixels, and its colour scheme.
    pub fn set_viewport(&mut self, width: u32, height: u32, scheme: &str) -> Result<()> {
        let size = json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600 });
        self.call("Emulation.setDeviceMetricsOverride", size)?;
        let media = json!({ "features": [{ "name": "prefers-color-scheme", "value": scheme }] });
        self.call("Emulation.setEmulatedMedia", media).map(drop)
    }

    /// Presses a key, as in `Tab`.
    pub fn press(&mut self, key: &str, code: u32) -> Result<()> {
        let text = if key == "Enter" { "\r" } else { "" };
        for kind in ["keyDown", "keyUp"] {
            let params =
                json!({ "type": kind, "key": key, "code": key, "windowsVirtualKeyCode": code, "text": text });
            self.call("Input.dispatchKeyEvent", params)?;
        }
        Ok(())
    }

    pub fn type_text(&mut self, text: &str) -> Result<()> {
        self.call("Input.insertText", json!({ "text": text })).map(drop)
    }

    pub fn picture(&mut self, to: &Path) -> Result<()> {
        let shot = self.call("Page.captureScreenshot", json!({ "format": "png" }))?;
        let text = shot["data"].as_str().context("no picture")?;
        let mut decode =
            Command::new("base64").arg("-d").stdin(Stdio::piped()).stdout(File::create(to)?).spawn()?;
        decode.stdin.take().context("no pipe")?.write_all(text.as_bytes())?;
        ensure!(decode.wait()?.success(), "base64 fails");
        Ok(())
    }

    /// Findings of axe-core about the page; `None` if it is not installed.
    pub fn faults(&mut self) -> Result<Option<Vec<String>>> {
        let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../target/web/axe.js");
        let Ok(axe) = fs::read_to_string(&path) else { return Ok(None) };
        self.eval(&format!("{axe};null"))?;
        let found = self.eval(
            "axe.run(document).then(({ violations }) => violations.flatMap(({ id, nodes }) => nodes.map((node) => \
             `${id}: ${node.target.join(' ')}: ${node.failureSummary}`)))",
        )?;
        let found = found.as_array().context("axe-core returns no list")?;
        Ok(Some(found.iter().filter_map(|one| one.as_str().map(str::to_owned)).collect()))
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // Orderly, so that its own processes exit with it; killed if that fails.
        self.session = None;
        if self.call("Browser.close", json!({})).is_ok() {
            let exited = || Ok(self.child.0.try_wait()?.ok_or_else(String::new));
            let _ = wait_for(Duration::from_secs(5), exited);
        }
    }
}
