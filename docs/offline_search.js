// Browsers start no workers for pages on disk: there, the search worker runs in a hidden frame, which has this page's origin.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.body.appendChild(document.createElement("iframe"));
      frame.hidden = true;
      this.inside = frame.contentWindow;
      this.inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      const script = this.inside.document.createElement("script");
      script.src = url;
      this.isReady = new Promise((resolve) => (script.onload = resolve));
      this.inside.document.body.append(script);
    }

    postMessage(data) {
      this.isReady.then(() => this.inside.dispatchEvent(new this.inside.MessageEvent("message", { data })));
    }
  };
}
