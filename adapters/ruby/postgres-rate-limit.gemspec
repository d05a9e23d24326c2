Gem::Specification.new do |gem|
  gem.name = "postgres-rate-limit"
  gem.version = "1.0.0"
  gem.summary = "A store for rack-attack, and for rate_limit of Rails, that counts in PostgreSQL"
  gem.description = "Counts in PostgreSQL, exactly over all processes, by the extension ratelimit or its SQL file."
  gem.license = "PostgreSQL"
  gem.authors = ["the ratelimit developers"]
  gem.homepage = "https://ratelimit.example/"
  gem.metadata = {
    "source_code_uri" => "https://ratelimit.example/ratelimit.git",
    "bug_tracker_uri" => "https://ratelimit.example/issues",
    "rubygems_mfa_required" => "true"
  }
  gem.required_ruby_version = ">= 3.1"
  gem.files = ["lib/rate_limit_store.rb", "lib/counters.sql", "LICENSE", "README.md"]
  gem.add_dependency "pg", "~> 1.4"
end
