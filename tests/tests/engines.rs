use dcqcn::engine::*;
use dcqcn_tests::both::*;
use dcqcn_tests::packets::*;
use dcqcn_common::params::*;
use dcqcn::dataplane::Sizes;
#[test]
fn probe() {
    let mut config = Config::DEFAULT;
    config.scalars.cp_enable = 1;
    config.scalars.link_rate_bps = 1_000_000_000;
    config.scalars.pacer = PACER_FQ;
    let sizes = Sizes { rp_flows: 64, np_flows: 64 };
    let port = Port::new(LO, sizes.rp_sets(), sizes.np_sets());
    let params = Params::new(&config, port).unwrap();
    let mut k = Kernel::new(sizes, &params, 1).unwrap();
    let frame = Roce { payload: 65000, ..Roce::default() }.frame();
    for hook in [Hook::Xdp, Hook::Ingress, Hook::Egress] {
        for len in [13, 14, 15, 20, 60, 1500, 2048, 2049, 3500, 3700, 4096, 4200, 9018, 65000, 65535, 65549, 65550, 65551, 65560,66000] {
            let mut f = frame.clone(); f.resize(len, 0);
            match k.run(hook, 5, &f, &Meta { ingress_ifindex: 1, ..Meta::default() }) {
                Ok(r) => println!("{hook:?} {len} ok {:?} {}", r.outcome.verdict, r.outcome.packet == f),
                Err(e) => println!("{hook:?} {len} {e}"),
            }
        }
    }
}
