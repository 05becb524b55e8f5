// Time series of ten minutes: received completely at first, then point by point.

const SPAN_S = 600;

export class Figures {
  constructor() {
    this.t = [];
    this.values = {};
    this.qps = [];
  }

  /** Adds a received message. */
  add(message) {
    if (message.whole) {
      this.t = message.t;
      this.values = message.values;
      this.qps = message.qps;
      return;
    }
    const nothing = message.t.map(() => null);
    this.t.push(...message.t);
    for (const [key, values] of Object.entries(this.values)) values.push(...(message.values[key] ?? nothing));
    this.qps.forEach((qp, at) => qp.rate_bps.push(...(message.qps[at]?.rate_bps ?? nothing)));
    const last = this.t[this.t.length - 1];
    const old = this.t.findIndex((t) => t >= last - SPAN_S);
    if (old <= 0) return;
    for (const values of [this.t, ...Object.values(this.values), ...this.qps.map((qp) => qp.rate_bps)]) values.splice(0, old);
  }
}
