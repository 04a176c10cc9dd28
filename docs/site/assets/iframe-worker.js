// A browser starts no worker for a page that it has from a file. There the search runs in a hidden frame, which has what the search
// uses of a worker. Material asks by this file's name and the name IFrameWorker whether there is such a replacement.
"use strict";
if (location.protocol === "file:") {
    window.Worker = window.IFrameWorker = class extends EventTarget {
        constructor(address) {
            super();
            const frame = document.createElement("iframe");
            frame.hidden = true;
            document.body.append(frame);
            this.inside = frame.contentWindow;
            this.inside.document.open();
            this.inside.document.close();
            this.inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", {data}));
            this.inside.importScripts = async (...addresses) => {
                for (const each of addresses)
                    await this.load(each);
            };
            this.loaded = this.load(address);
        }

        load(address) {
            return new Promise((resolve, reject) => {
                const script = this.inside.document.createElement("script");
                script.onload = resolve;
                script.onerror = reject;
                script.src = address;
                this.inside.document.documentElement.append(script);
            });
        }

        async postMessage(data) {
            await this.loaded;
            this.inside.dispatchEvent(new this.inside.MessageEvent("message", {data}));
        }
    };
}
