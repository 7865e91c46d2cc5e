// Exchanges a token for a session of the server.
const said = document.getElementById("said");

document.getElementById("form").addEventListener("submit", async (event) => {
  event.preventDefault();
  const answer = await fetch("/api/sign-in", {
    method: "POST",
    headers: { "content-type": "application/json" },
    body: JSON.stringify({ token: document.getElementById("token").value }),
  });
  if (answer.ok) {
    location.reload();
    return;
  }
  const { error } = await answer.json();
  said.className = "trouble";
  said.textContent = error;
});
