//! The manifests of `deploy/kubernetes`.

use serde::Deserialize as _;

use crate::prelude::*;

pub fn directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/kubernetes")
}

pub fn documents(path: &Path) -> Result<Vec<Value>> {
    let text = fs::read_to_string(path).with_context(|| path.display().to_string())?;
    parsed(&text).with_context(|| path.display().to_string())
}

pub fn parsed(text: &str) -> Result<Vec<Value>> {
    Ok(serde_yaml_ng::Deserializer::from_str(text).map(Value::deserialize).collect::<Result<_, _>>()?)
}
