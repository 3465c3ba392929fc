import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpRequest.BodyPublishers;
import java.net.http.HttpResponse;
import java.net.http.HttpResponse.BodyHandlers;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CompletableFuture;

/**
 * Java's own client, with its defaults: it offers HTTP/2 by an upgrade of its first requests. Sends
 * the body in the second argument to the URL in the first, 20 times at once, then with a body in
 * chunks, then only once the server has said 100 Continue. Prints each status, version and answer.
 */
class AskServer {
  public static void main(String[] arguments) throws Exception {
    URI url = URI.create(arguments[0]);
    String body = arguments[1];
    HttpClient client = HttpClient.newHttpClient();
    HttpRequest.Builder builder = HttpRequest.newBuilder(url);
    HttpRequest request = builder.copy().POST(BodyPublishers.ofString(body)).build();
    List<CompletableFuture<HttpResponse<String>>> answers = new ArrayList<>();
    for (int number = 0; number < 20; number++) {
      answers.add(client.sendAsync(request, BodyHandlers.ofString()));
    }
    for (CompletableFuture<HttpResponse<String>> answer : answers) {
      print(answer.get());
    }
    var parts = List.of(body.substring(0, 5).getBytes(), body.substring(5).getBytes());
    HttpRequest inChunks = builder.copy().POST(BodyPublishers.ofByteArrays(parts)).build();
    print(client.send(inChunks, BodyHandlers.ofString()));
    HttpRequest.Builder waiting = builder.copy().expectContinue(true);
    print(client.send(waiting.POST(BodyPublishers.ofString(body)).build(), BodyHandlers.ofString()));
  }

  private static void print(HttpResponse<String> answer) {
    System.out.println(answer.statusCode() + " " + answer.version() + " " + answer.body().strip());
  }
}
