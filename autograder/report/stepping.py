"""A recorded run as an HTML fragment to step through: buttons, a slider and the keyboard; no network, no library."""

from __future__ import annotations

import json
import secrets
from html import escape

from autograder.stepping import SteppedRun


def fragment(run: SteppedRun) -> str:
    """One <section> with its own data and script. Without a script the list of steps is all there is to see."""
    name = f"ag{secrets.token_hex(4)}"
    data = json.dumps(run.to_json(), separators=(",", ":")).replace("<", "\\u003c")
    left = (
        f" The record ends after {len(run.steps)} steps; {run.left_out} more are left out."
        if run.left_out
        else ""
    )
    listed = "".join(f"<li>{escape(step['what'])}</li>" for step in run.steps[:40])
    found = "".join(f"<li>{escape(text)}</li>" for text in run.findings[:5])
    found = f"<p>The emulator found in this run:</p><ul>{found}</ul>" if found else ""
    return (
        f'<section id="{name}" aria-label="Step through {escape(run.exercise)}" tabindex="0"'
        ' style="font-family: system-ui, sans-serif; font-size: 0.95em; color: inherit; border: 1px solid #8c959f; padding: 0.6em">'
        f"<style>#{name} button,#{name} select{{font:inherit;margin-right:.4em}} #{name} table{{border-collapse:collapse;background:transparent}}"
        f"#{name} td,#{name} th{{padding:.15em .7em .15em 0;text-align:left;vertical-align:top;font-weight:normal}}"
        f"#{name} .now{{outline:2px solid #cf6a00}} #{name} pre{{background:transparent;color:inherit;overflow-x:auto;margin:.3em 0}}"
        f"#{name} h4{{margin:.7em 0 .2em}}</style>"
        f"<p><strong>{escape(run.exercise)}</strong>, {escape(run.case)}, completion {escape(run.schedule)}.{left}"
        " A step is a warp that runs until it waits, or an asynchronous operation that completes."
        " Keys: left and right arrow, Home, End.</p>"
        '<div role="group" aria-label="Which step">'
        '<button type="button" data-go="first">first</button><button type="button" data-go="back">back</button>'
        '<button type="button" data-go="on">on</button><button type="button" data-go="last">last</button>'
        '<label>stop at <select data-at="filter"><option value="">every step</option></select></label> '
        f'<label>step <input type="range" min="0" max="{max(0, len(run.steps) - 1)}" value="0" data-at="slider"></label></div>'
        '<div data-at="view" aria-live="polite"></div>'
        f"<noscript><ol>{listed}</ol></noscript>{found}"
        f'<script type="application/json" data-at="data">{data}</script><script>{_SCRIPT.replace("NAME", name)}</script></section>'
    )


_SCRIPT = r"""
(function () {
  var root = document.getElementById("NAME"); if (!root) { return; }
  function at(n) { return root.querySelector('[data-at="' + n + '"]'); }
  var run = JSON.parse(at("data").textContent), steps = run.steps, view = at("view"), slider = at("slider");
  var filter = at("filter"), now = 0, key;
  function esc(x) { return String(x).replace(/[&<>"]/g, function (c) {
    return {"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;"}[c]; }); }
  function cta(x) { return many ? "CTA " + x.cta + " " : ""; }
  var ctas = {}; steps.forEach(function (s) { s.warps.forEach(function (w) { ctas[w.cta] = 1; }); });
  var many = Object.keys(ctas).length > 1, choices = {};
  steps.forEach(function (s) {
    if (s.moved) { choices["w" + s.moved] = (many ? "CTA " + s.moved[0] + " " : "") + "warp " + s.moved[1]; }
    else { choices.a = "asynchronous operations"; }
    s.barriers.forEach(function (b) { choices["b" + b.cta + " " + b.name] = "barrier " + cta(b) + b.name; });
    s.smem.forEach(function (m) { choices["s" + m.cta + " " + m.name] = "SMEM " + cta(m) + m.name; });
    if (s.tmem.length) { choices.t = "TMEM"; }
  });
  for (key in choices) { var o = document.createElement("option"); o.value = key; o.textContent = choices[key]; filter.appendChild(o); }
  function shown(s) {
    var f = filter.value; if (!f) { return true; }
    if (f[0] === "w") { return s.moved && "w" + s.moved === f; }
    if (f === "a") { return !s.moved; }
    if (f === "t") { return s.tmem.length > 0; }
    return (f[0] === "b" ? s.barriers : s.smem).some(function (x) { return f.slice(1) === x.cta + " " + x.name; });
  }
  function state(n) {
    var b = {}, m = {}, t = {}, r = {}, i, s;
    for (i = 0; i <= n; i++) {
      s = steps[i];
      s.barriers.forEach(function (x) { b[x.cta + " " + x.name] = {x: x, at: i}; });
      s.smem.forEach(function (x) { m[x.cta + " " + x.name] = {x: x, at: i}; });
      s.tmem.forEach(function (x) { t[x.cta + " " + x.column] = {x: x, at: i}; });
      if (s.moved) { r[s.moved] = s.registers; }
    }
    return {b: b, m: m, t: t, r: r};
  }
  function table(title, heads, rows) {
    if (!rows.length) { return ""; }
    return "<h4>" + title + "</h4><table><thead><tr>" + heads.map(function (h) { return '<th scope="col"><em>' + h + "</em></th>"; }).join("") +
      "</tr></thead><tbody>" + rows.join("") + "</tbody></table>";
  }
  function row(cells, mark) {
    return "<tr" + (mark ? ' class="now"' : "") + "><th scope=\"row\">" + (mark ? "&#9656; " : "") + cells[0] + "</th>" +
      cells.slice(1).map(function (c) { return "<td>" + c + "</td>"; }).join("") + "</tr>";
  }
  function map(blocks) {
    var out = "", i; for (i = 0; i < 64; i++) { out += blocks.indexOf(i) >= 0 ? "#" : "."; } return "<code>" + out + "</code>";
  }
  function values(o) { return Object.keys(o).map(function (k) { return o[k]; }); }
  function draw() {
    if (!steps.length) { view.innerHTML = "<p>nothing was recorded: is there such a cluster?</p>"; return; }
    var s = steps[now], all = state(now), i, from, code = "";
    for (i = Math.max(1, s.line - 2); s.line && i <= Math.min(run.source.length, s.line + 2); i++) {
      code += (i === s.line ? "&#9656; " : "  ") + i + "  " + esc(run.source[i - 1]) + "\n";
    }
    var waiting = s.warps.filter(function (w) { return w.state === "waits"; }).length;
    var html = "<p><strong>step " + (now + 1) + " of " + steps.length + ": " + esc(s.what) + "</strong> (" + waiting + " of " +
      s.warps.length + " warps wait)</p>" + (code ? "<pre>" + code + "</pre>" : "");
    html += table("Warps: who waits, and for what", ["warp", "state", "line", "waits for", "registers (first lanes)"], s.warps.map(function (w) {
      var id = [w.cta, w.warps[0]], regs = (all.r[id] || []).map(function (p) { return "<code>" + esc(p[0]) + "</code> " + esc(p[1]); }).join("<br>");
      var mine = s.moved && String(s.moved) === String(id);
      if (regs && !mine) { regs = "<details><summary>as of its last step</summary>" + regs + "</details>"; }
      return row([cta(w) + w.warps.join(", "), w.state, w.line || "", esc(w.waits), regs], mine);
    }));
    html += table("Barriers", ["mbarrier", "parity", "phases completed", "arrivals missing", "bytes missing"], values(all.b).map(function (e) {
      var b = e.x; return row([esc(cta(b) + b.name), b.parity, b.phases, b.pending + " of " + b.expected, b.bytes], e.at === now);
    }));
    html += table("SMEM", ["buffer", "last changed", "where (64 parts of the buffer)", "first values in memory"], values(all.m).map(function (e) {
      var m = e.x; return row([esc(cta(m) + m.name) + " " + esc(m.dtype) + " (" + m.shape.join(", ") + ")", "step " + (e.at + 1) + ", " + m.changed +
        " of " + m.bytes + " bytes", map(m.blocks), esc(m.values.join(", "))], e.at === now);
    }));
    html += table("TMEM", ["columns", "last changed", "columns written, by lanes 0-31, 32-63, 64-95, 96-127", "lane 0"], values(all.t).map(function (e) {
      var t = e.x; return row([cta(t) + t.column + " to " + (t.column + t.columns - 1), "step " + (e.at + 1), t.written.map(function (q) {
        return q.length ? q[0] + "-" + q[1] : "none"; }).join("; "), esc(t.values.join(", "))], e.at === now);
    }));
    view.innerHTML = html; slider.value = now; slider.setAttribute("aria-valuetext", "step " + (now + 1) + ": " + s.what);
  }
  function move(by) {
    var n = now + by; while (n >= 0 && n < steps.length && !shown(steps[n])) { n += by; }
    if (n >= 0 && n < steps.length) { now = n; draw(); }
  }
  function go(where) {
    if (where === "on") { move(1); } else if (where === "back") { move(-1); }
    else if (where === "first") { now = -1; move(1); } else { now = steps.length; move(-1); }
  }
  root.addEventListener("click", function (e) { var g = e.target.getAttribute && e.target.getAttribute("data-go"); if (g) { go(g); } });
  slider.addEventListener("input", function () { now = Number(slider.value); draw(); });
  filter.addEventListener("change", function () { now = -1; move(1); });
  root.addEventListener("keydown", function (e) {
    var g = {ArrowRight: "on", ArrowLeft: "back", Home: "first", End: "last"}[e.key];
    if (!g || e.target.tagName === "SELECT") { return; }
    e.preventDefault(); e.stopPropagation(); go(g);
  });
  draw();
})();
"""
