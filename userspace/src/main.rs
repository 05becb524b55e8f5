//! dcqcn
fn main() {}
