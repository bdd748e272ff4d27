// A certified provider of OpenID Connect for tests of the console: it says its issuer on standard output, is told on standard
// input where browsers come back to, and ends when that ends. Whoever types a name is that user, with the groups after a plus.
import http from "node:http";
import readline from "node:readline";
import { Provider } from "oidc-provider";

const server = http.createServer();
await new Promise((listening) => server.listen(0, "127.0.0.1", listening));
const issuer = `http://127.0.0.1:${server.address().port}`;
console.log(issuer);

const lines = readline.createInterface({ input: process.stdin });
lines.on("close", () => process.exit(0));
lines.once("line", (line) => {
  const told = JSON.parse(line);
  const provider = new Provider(issuer, {
    clients: [{
      client_id: told.client, client_secret: told.secret, redirect_uris: [told.console + "/login/oidc/callback"],
      post_logout_redirect_uris: [told.console + "/login"],
    }],
    claims: { openid: ["sub"], profile: ["preferred_username"], email: ["email", "email_verified"], groups: ["groups"] },
    cookies: { keys: ["of tests"] },
    findAccount: (_, id) => ({
      accountId: id,
      claims: () => ({
        sub: id, preferred_username: id.split("+")[0], email: `${id.split("+")[0]}@example.org`, email_verified: true,
        groups: id.split("+").slice(1),
      }),
    }),
  });
  server.on("request", provider.callback());
  console.log("serves");
});
