//! Mutual TLS, and permissions of etcd's users, as set up in docs/how-to/secure-a-fleet.md.

use dcqcn_tests::fleet::{Authority, MockDaemon, WAIT, file};
use dcqcn_tests::prelude::*;

/// Commands of the page, without this test's certificates.
const PAGE: &str = include_str!("../../../docs/how-to/secure-a-fleet.md");

struct SecureFixture {
    authority: Authority,
    etcd: Etcd,
}

impl SecureFixture {
    fn new(dir: &Path) -> Result<Self> {
        let authority = Authority::new(dir)?;
        authority.sign_member()?;
        for name in ["root", "operator", "h1", "h2"] {
            authority.sign(name)?;
        }
        let file = |name: &str| authority.file(name);
        let (ca, cert, key) = (file("ca.pem")?, file("etcd1.pem")?, file("etcd1.key")?);
        let options =
            ["--client-cert-auth", "--trusted-ca-file", &ca, "--cert-file", &cert, "--key-file", &key];
        let (root, root_key) = (file("root.pem")?, file("root.key")?);
        let etcd = Etcd::start_secure(1, &options, &["--cacert", &ca, "--cert", &root, "--key", &root_key])?;
        Ok(Self { authority, etcd })
    }

    /// Types the page's commands about etcd's users.
    fn set_up(&self) -> Result<()> {
        for line in PAGE.lines().filter_map(|line| line.strip_prefix("etcdctl ")) {
            // The page has it once for every host.
            let lines = match line.contains("h1") {
                true => vec![line.to_owned(), line.replace("h1", "h2")],
                false => vec![line.to_owned()],
            };
            for line in lines {
                self.etcd.ok(&line.split_whitespace().collect::<Vec<_>>())?;
            }
        }
        Ok(())
    }

    fn command(&self, user: &str, words: &[&str]) -> Result<Command> {
        let mut command = dcqcn_fleet(words)?;
        command.args(["--etcd", &self.etcd.endpoints()]);
        command.args(["--etcd-ca", &self.authority.file("ca.pem")?]);
        command.args(["--etcd-cert", &self.authority.file(&format!("{user}.pem"))?]);
        command.args(["--etcd-key", &self.authority.file(&format!("{user}.key"))?]);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        Ok(command)
    }

    /// An agent named `name` with the certificate of `user`.
    fn agent(&self, user: &str, name: &str, control: &Path) -> Result<Running> {
        let words = ["agent", "--ttl", "3s", "--every", "1s", "--name", name];
        let mut command = self.command(user, &words)?;
        command.arg("--control").arg(control).stdout(Stdio::null()).stderr(Stdio::null());
        Ok(Running(command.spawn()?))
    }

    fn hosts(&self) -> Result<String> {
        output_of(&mut self.command("operator", &["status", "--json"])?)
    }
}

#[test]
fn agent_has_least_privileges() -> Result<()> {
    require_installed!(Etcd);
    let dir = tempfile::tempdir()?;
    let secure = SecureFixture::new(dir.path())?;
    secure.set_up()?;
    // A key that other users can read is rejected.
    let key = secure.authority.file("operator.key")?;
    fs::set_permissions(&key, fs::Permissions::from_mode(0o644))?;
    let refused = error_of(&mut secure.command("operator", &["status"])?, 1)?;
    assert_contains(&refused, "gives other users access to a secret");
    fs::set_permissions(&key, fs::Permissions::from_mode(0o600))?;

    let control = dir.path().join("control");
    let daemon = MockDaemon::listen(&control)?;
    let agent = secure.agent("h1", "h1", &control)?;
    wait_until("h1 does not report", || Ok(secure.hosts()?.contains("\"host\": \"h1\"")))?;
    let path = dir.path().join("fleet.toml");
    fs::write(&path, file("soak = '0s'", "rpg_gd = 12"))?;
    let path = path.to_str().context("path is not UTF-8")?;
    output_of(secure.command("operator", &["apply", path])?.args(WAIT))?;
    assert_eq!(daemon.name().as_deref(), Some("fleet 1"));

    // A host's certificate does not allow creating versions, nor accessing other hosts' reports.
    let refused = error_of(&mut secure.command("h1", &["apply", path])?, 1)?;
    assert_contains(&refused, "this user lacks the permission");
    let _other = secure.agent("h2", "h1x", &control)?;
    drop(agent);
    let _false = secure.agent("h2", "h1", &control)?;
    wait_until("h1 is still there", || Ok(secure.hosts()?.contains("\"is_there\": false")))?;
    let hosts = secure.hosts()?;
    assert!(!hosts.contains("h1x"), "{hosts}");

    // Clients without a certificate are rejected.
    let ca = secure.authority.file("ca.pem")?;
    let words = ["status", "--etcd", &secure.etcd.endpoints(), "--etcd-ca", &ca];
    assert_contains(&error_of(&mut dcqcn_fleet(&words)?, 1)?, "cannot reach etcd");
    Ok(())
}

#[test]
fn unusable_certificates_name_file_and_cause() -> Result<()> {
    require_installed!(Etcd);
    let dir = tempfile::tempdir()?;
    let secure = SecureFixture::new(dir.path())?;
    secure.set_up()?;
    let file = |name: &str| secure.authority.file(name);
    let error = |ca: &str, cert: &str, key: &str| -> Result<String> {
        let etcd = secure.etcd.endpoints();
        let mut command = dcqcn_fleet(&["status", "--etcd", &etcd, "--etcd-ca", &file(ca)?])?;
        error_of(command.args(["--etcd-cert", &file(cert)?, "--etcd-key", &file(key)?]), 1)
    };
    let sign = "openssl x509 -req -CA ca.pem -CAkey ca.key -CAcreateserial -in operator.csr";
    let other = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj /CN=other -keyout other.key";
    let commands = format!(
        "{sign} -days 9 -out bare.pem; {sign} -days 0 -extfile client.ext -out expired.pem; {other} -out other.pem; sleep 1"
    );
    output_of(Command::new("sh").args(["-ec", &commands]).current_dir(dir.path()))?;
    for (ca, cert, key, causes) in [
        ("ca.pem", "expired.pem", "operator.key", ["expired.pem", "the certificate expired at 20"]),
        ("expired.pem", "operator.pem", "operator.key", ["expired.pem", "the certificate expired at 20"]),
        ("ca.pem", "bare.pem", "operator.key", ["bare.pem", "X.509 version other than 3"]),
        ("ca.pem", "operator.pem", "h1.key", ["operator.pem with ", "KeyMismatch"]),
        ("h1.key", "operator.pem", "operator.key", ["h1.key", "no certificate in PEM"]),
        ("other.pem", "operator.pem", "operator.key", ["TLS failed", "UnknownIssuer"]),
        ("ca.pem", "other.pem", "other.key", ["cannot reach etcd", "`--etcd-cert`"]),
    ] {
        let text = error(ca, cert, key)?;
        let is_named = causes.iter().all(|cause| text.contains(cause));
        ensure!(is_named, "{ca} {cert} {key}: {text}");
    }
    Ok(())
}

#[test]
fn service_restarts_for_new_certificates() -> Result<()> {
    require_installed!(Etcd);
    let dir = tempfile::tempdir()?;
    let secure = SecureFixture::new(dir.path())?;
    let log = |name: &str| dir.path().join(format!("{name}.log"));
    let start = |name: &str, words: &[&str]| -> Result<Running> {
        let mut command = secure.command("h1", words)?;
        command.stdout(Stdio::null()).stderr(File::create(log(name))?);
        Ok(Running(command.spawn()?))
    };
    let mut services = vec![
        ("coordinate", start("coordinate", &["coordinate"])?),
        ("serve", start("serve", &["serve", "--fleet", "--listen", "127.0.0.1:0"])?),
        ("agent", start("agent", &["agent", "--name", "h1"])?),
    ];
    wait_until("h1 does not report", || Ok(secure.hosts()?.contains("\"host\": \"h1\"")))?;
    // Certificates that the authority signed before its renewal remain valid.
    secure.authority.renew()?;
    secure.hosts()?;
    secure.authority.sign("h1")?;
    for (name, service) in &mut services {
        let ended = wait_for(Duration::from_secs(60), || {
            Ok(service.0.try_wait()?.ok_or_else(|| format!("{name} keeps the old certificate")))
        })?;
        let text = fs::read_to_string(log(name))?;
        ensure!(ended.code() == Some(1) && text.contains("were replaced"), "{name}: {ended}: {text}");
    }
    Ok(())
}
