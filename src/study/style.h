// The style sheets of the studies: of drawings, which can stand alone, and of pages.
#pragma once

namespace qkv::study {

// Colours are chosen to be told apart by everyone (after Okabe and Ito), and each series has a
// shape of its own.
inline constexpr const char* kDrawingStyle = R"css(
:root { --paper: #fdfcf9; --ink: #1d1f21; --muted: #5f6368; --rule: #e3e0d8; --card: #ffffff;
  --a: #b8450b; --b: #0b62a8; --c: #00755a; --d: #8a3c78; --e: #7a5c00; --f: #55595e;
  --off: #b00020; }
@media (prefers-color-scheme: dark) {
  :root { --paper: #15171a; --ink: #e8e6e1; --muted: #a3a6aa; --rule: #33373c; --card: #1c1f23;
    --a: #f59a5b; --b: #70b8f2; --c: #4fc9a4; --d: #dd9ac9; --e: #e3c04d; --f: #b4b8bd;
    --off: #ff8a94; }
}
svg text { font: 12px system-ui, "Segoe UI", Roboto, "DejaVu Sans", sans-serif;
  fill: var(--muted); }
.grid { stroke: var(--rule); } .axis { stroke: var(--muted); }
.line { fill: none; stroke-width: 1.75; opacity: .75; }
.bar { stroke-width: 1.5; } .band { stroke: none; opacity: .16; }
.mark:hover { opacity: .6; }
.series-a { fill: var(--a); stroke: var(--a); } .series-b { fill: var(--b); stroke: var(--b); }
.series-c { fill: var(--c); stroke: var(--c); } .series-d { fill: var(--d); stroke: var(--d); }
.series-e { fill: var(--e); stroke: var(--e); } .series-f { fill: var(--f); stroke: var(--f); }
.mark circle, .mark rect, .mark path { stroke: var(--card); stroke-width: 1; }
.key { font-size: 14px; fill: var(--ink); } .paper { fill: var(--paper); }
.key-a { fill: var(--a); } .key-b { fill: var(--b); } .key-c { fill: var(--c); }
.key-d { fill: var(--d); } .key-e { fill: var(--e); } .key-f { fill: var(--f); }
)css";

// What a page has beyond its drawings.
inline constexpr const char* kPageStyle = R"css(
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink);
  font: 17px/1.6 Charter, "Bitstream Charter", "Iowan Old Style", Georgia, serif; }
main { max-width: 1120px; margin: 0 auto; padding: 56px 28px 80px; }
h1 { font-size: 2.6rem; line-height: 1.15; margin: 0 0 .4rem; letter-spacing: -.01em; }
h2 { font-size: 1.35rem; margin: 3rem 0 1rem; }
sub { font-size: .7em; line-height: 0; }
.lead { font-size: 1.2rem; max-width: 46rem; margin: 0 0 .4rem; }
.muted, figcaption, .legend, table, caption, .badge { font-family: system-ui, "Segoe UI", Roboto,
  "Helvetica Neue", "DejaVu Sans", sans-serif; }
.muted { color: var(--muted); font-size: .85rem; margin: 0; }
.findings { list-style: none; margin: 0; padding: 0; }
.findings li { display: grid; grid-template-columns: 6.6rem 1fr; padding: .9rem 0;
  border-top: 1px solid var(--rule); }
.findings li:last-child { border-bottom: 1px solid var(--rule); }
.findings p { margin: 0; max-width: 50rem; }
.badge { font-size: .75rem; font-weight: 600; letter-spacing: .03em; align-self: start;
  justify-self: start; margin-top: .3rem; padding: .05rem .6rem; border-radius: 1rem;
  border: 1px solid currentColor; }
.badge.holds { color: var(--c); } .badge.loose { color: var(--a); }
.badge.off { color: var(--off); }
.legend { display: flex; flex-wrap: wrap; gap: .3rem 1.6rem; align-items: baseline;
  font-size: .9rem; margin: 0 0 1rem; }
.legend span[class^=series] { color: var(--ink); }
.legend .series-a b { color: var(--a); } .legend .series-b b { color: var(--b); }
.legend .series-c b { color: var(--c); } .legend .series-d b { color: var(--d); }
.legend .series-e b { color: var(--e); } .legend .series-f b { color: var(--f); }
.figures { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 440px), 1fr));
  gap: 22px; }
figure { margin: 0; padding: 16px 16px 8px; background: var(--card);
  border: 1px solid var(--rule); border-radius: 10px; }
figcaption { font-size: .85rem; color: var(--muted); margin-bottom: .4rem; }
figcaption strong { color: var(--ink); display: block; font-size: .95rem; }
figcaption strong::first-letter { text-transform: uppercase; }
svg { display: block; width: 100%; height: auto; }
.scroll { overflow-x: auto; margin: 0 0 2rem; }
table { border-collapse: collapse; font-size: .78rem; font-variant-numeric: tabular-nums;
  line-height: 1.35; }
caption { text-align: left; color: var(--muted); padding: 0 0 .6rem; font-size: .85rem; }
th, td { padding: .35rem .7rem; text-align: right; white-space: nowrap; vertical-align: top; }
thead th { white-space: normal; vertical-align: bottom; font-weight: 600;
  border-bottom: 1px solid var(--muted); min-width: 5.2rem; }
thead th:first-child { min-width: 0; }
tbody th { position: sticky; left: 0; background: var(--paper); }
tr.first > * { border-top: 1px solid var(--rule); }
.name { text-align: left; }
.expected { display: block; color: var(--muted); font-size: .92em; }
td.off { color: var(--off); } td.off b { display: block; }
.method p { max-width: 50rem; margin: 0 0 .8rem; }
@media (max-width: 640px) { main { padding: 32px 16px 48px; } h1 { font-size: 2rem; }
  .findings li { grid-template-columns: 1fr; gap: .4rem; } }
@media print { figure { break-inside: avoid; } body { font-size: 11pt; } }
)css";

}  // namespace qkv::study
