import io.anserini.analysis.DefaultEnglishAnalyzer;
import java.nio.charset.StandardCharsets;
import java.nio.file.*;
import java.util.*;
import org.apache.lucene.analysis.*;
import org.apache.lucene.analysis.tokenattributes.CharTermAttribute;
import org.apache.lucene.document.*;
import org.apache.lucene.index.*;
import org.apache.lucene.search.*;
import org.apache.lucene.search.similarities.BM25Similarity;
import org.apache.lucene.store.*;
import org.apache.lucene.util.BytesRef;

/** Lucene.java tokens FILE | search DOCUMENTS QUERIES: lines in, lines out (tab-separated). */
public class Lucene {
  static final Analyzer ANALYZER = DefaultEnglishAnalyzer.newDefaultInstance();

  static List<String> tokens(String text) throws Exception {
    List<String> found = new ArrayList<>();
    try (TokenStream stream = ANALYZER.tokenStream("contents", text)) {
      CharTermAttribute term = stream.addAttribute(CharTermAttribute.class);
      stream.reset();
      while (stream.incrementToken()) found.add(term.toString());
      stream.end();
    }
    return found;
  }

  public static void main(String[] args) throws Exception {
    var out = new java.io.PrintStream(System.out, false, StandardCharsets.UTF_8);
    if (args[0].equals("tokens")) {
      for (String line : Files.readAllLines(Path.of(args[1]))) out.println(String.join("\t", tokens(line)));
      out.flush();
      return;
    }
    Directory directory = new ByteBuffersDirectory();
    IndexWriterConfig config = new IndexWriterConfig(ANALYZER);
    config.setSimilarity(new BM25Similarity(0.9f, 0.4f));
    try (IndexWriter writer = new IndexWriter(directory, config)) {
      for (String line : Files.readAllLines(Path.of(args[1]))) {
        int cut = line.indexOf('\t');
        Document document = new Document();
        document.add(new StringField("id", line.substring(0, cut), Field.Store.YES));
        document.add(new SortedDocValuesField("id", new BytesRef(line.substring(0, cut))));
        document.add(new TextField("contents", line.substring(cut + 1), Field.Store.NO));
        writer.addDocument(document);
      }
      writer.forceMerge(1);
    }
    IndexSearcher searcher = new IndexSearcher(DirectoryReader.open(directory));
    searcher.setSimilarity(new BM25Similarity(0.9f, 0.4f));
    Sort sort = new Sort(SortField.FIELD_SCORE, new SortField("id", SortField.Type.STRING));
    for (String line : Files.readAllLines(Path.of(args[2]))) {
      Map<String, Integer> counts = new LinkedHashMap<>();
      for (String token : tokens(line)) counts.merge(token, 1, Integer::sum);
      BooleanQuery.Builder query = new BooleanQuery.Builder();
      counts.forEach((token, count) -> query.add(
          new BoostQuery(new TermQuery(new Term("contents", token)), count), BooleanClause.Occur.SHOULD));
      List<String> found = new ArrayList<>();
      for (ScoreDoc hit : searcher.search(query.build(), 50, sort, true).scoreDocs)
        found.add(searcher.doc(hit.doc).get("id") + " " + hit.score);
      out.println(String.join("\t", found));
    }
    out.flush();
  }
}
